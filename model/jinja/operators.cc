// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "model/jinja/text.h"

namespace lamina::jinja {
namespace {

absl::Status Undefinedness(const Value& value) {
  return absl::InvalidArgumentError(*value.undefined().what);
}

absl::Status TypesRefuse(absl::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    return Undefinedness(a.is_undefined() ? a : b);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", op, "' does not work between ", a.type_name(), " and ", b.type_name()));
}

double AsDouble(const Value& value) {
  int64_t whole = 0;
  return value.AsInt(&whole) ? static_cast<double>(whole) : *value.floating();
}

bool IsIndexable(const Sequence& sequence) {
  return sequence.kind == SequenceKind::kList || sequence.kind == SequenceKind::kTuple ||
         sequence.kind == SequenceKind::kRange;
}

absl::StatusOr<bool> EqualItems(Budget& budget, const std::vector<Value>& a,
                                const std::vector<Value>& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(const bool same, Equal(budget, a[i], b[i]));
    if (!same) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<bool> EqualDicts(Budget& budget, const Mapping& a, const Mapping& b) {
  if (a.entries.size() != b.entries.size()) {
    return false;
  }
  for (const auto& [key, value] : a.entries) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(1 + b.entries.size() / 4));
    const Value* other = b.Find(key);
    if (other == nullptr) {
      return false;
    }
    LAMINA_ASSIGN_OR_RETURN(const bool same, Equal(budget, value, *other));
    if (!same) {
      return false;
    }
  }
  return true;
}

// Floor division and the remainder that goes with it.
int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}
int64_t FloorRemainder(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

absl::StatusOr<Value> IntPower(int64_t base, int64_t exponent) {
  int64_t out = 1;
  for (int64_t i = 0; i < exponent && out != 0 && base != 1; ++i) {
    if (base == -1) {
      return Value::Int(exponent % 2 == 0 ? 1 : -1);
    }
    if (__builtin_mul_overflow(out, base, &out)) {
      return absl::InvalidArgumentError("a power does not fit 64 bits");
    }
  }
  return Value::Int(out);
}

absl::StatusOr<Value> IntArithmetic(absl::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (op == "**") {
    return b < 0 ? Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)))
                 : IntPower(a, b);
  } else if (b == 0) {
    return absl::InvalidArgumentError("division by zero");
  } else if (op == "/") {
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &out);
  } else {
    out = op == "//" ? FloorDivide(a, b) : FloorRemainder(a, b);
  }
  if (overflow) {
    return absl::InvalidArgumentError(absl::StrCat(a, " ", op, " ", b, " does not fit 64 bits"));
  }
  return Value::Int(out);
}

absl::StatusOr<Value> FloatArithmetic(absl::string_view op, double a, double b) {
  if (op == "+") {
    return Value::Float(a + b);
  }
  if (op == "-") {
    return Value::Float(a - b);
  }
  if (op == "*") {
    return Value::Float(a * b);
  }
  if (op == "**") {
    return Value::Float(std::pow(a, b));
  }
  if (b == 0) {
    return absl::InvalidArgumentError("division by zero");
  }
  if (op == "/") {
    return Value::Float(a / b);
  }
  if (op == "//") {
    return Value::Float(std::floor(a / b));
  }
  const double rest = std::fmod(a, b);
  return Value::Float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

absl::StatusOr<Value> Repeat(Budget& budget, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const Sequence* sequence = value.sequence();
  const size_t unit = sequence == nullptr ? value.string()->size() : sequence->items.size();
  if (unit == 0) {
    times = 0;
  }
  // More than the budget could ever pay, without an overflow.
  if (times > static_cast<int64_t>(kStepsMax * kBytesPerStep)) {
    return budget.Spend(kStepsMax + 1);
  }
  LAMINA_RETURN_IF_ERROR(sequence == nullptr ? budget.SpendBytes(unit * static_cast<size_t>(times))
                                             : budget.Spend(unit * static_cast<size_t>(times)));
  if (sequence == nullptr) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) {
      out += *value.string();
    }
    return Value::String(std::move(out));
  }
  std::vector<Value> out;
  for (int64_t i = 0; i < times; ++i) {
    out.insert(out.end(), sequence->items.begin(), sequence->items.end());
  }
  return Value::List(std::move(out), sequence->kind);
}

bool IsRepeatable(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.string() != nullptr ||
         (sequence != nullptr && IsIndexable(*sequence) && sequence->kind != SequenceKind::kRange);
}

std::string Escaped(const Value& text) {
  return text.is_markup() ? *text.string() : EscapeHtml(*text.string());
}

absl::StatusOr<Value> Add(Budget& budget, const Value& a, const Value& b) {
  if (a.string() != nullptr && b.string() != nullptr) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(a.string()->size() + b.string()->size()));
    if (a.is_markup() || b.is_markup()) {
      LAMINA_RETURN_IF_ERROR(budget.SpendBytes(6 * (a.string()->size() + b.string()->size())));
      return Value::String(absl::StrCat(Escaped(a), Escaped(b)), true);
    }
    return Value::String(absl::StrCat(*a.string(), *b.string()));
  }
  const Sequence* left = a.sequence();
  const Sequence* right = b.sequence();
  if (left != nullptr && right != nullptr && left->kind == right->kind && IsRepeatable(a)) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(left->items.size() + right->items.size()));
    std::vector<Value> items = left->items;
    items.insert(items.end(), right->items.begin(), right->items.end());
    return Value::List(std::move(items), left->kind);
  }
  return TypesRefuse("+", a, b);
}

// A number without its fraction, as %d shows it.
absl::StatusOr<Value> Whole(const Value& number) {
  int64_t whole = 0;
  if (number.AsInt(&whole)) {
    return Value::Int(whole);
  }
  const double real = *number.floating();
  if (!(std::fabs(real) < 0x1p63)) {
    return absl::InvalidArgumentError("%d of a number that does not fit 64 bits");
  }
  return Value::Int(static_cast<int64_t>(real));
}

// text % values, with %s, %r, %d and %% alone.
absl::StatusOr<Value> FormatPercent(Budget& budget, absl::string_view format, const Value& b) {
  std::vector<Value> values = {b};
  if (b.sequence() != nullptr && b.sequence()->kind == SequenceKind::kTuple) {
    values = b.sequence()->items;
  }
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.push_back(format[i]);
      continue;
    }
    const char kind = ++i < format.size() ? format[i] : '\0';
    if (kind == '%') {
      out.push_back('%');
      continue;
    }
    if (kind != 's' && kind != 'r' && kind != 'd') {
      return absl::UnimplementedError(
          absl::StrCat("the conversion %", format.substr(i, 1), " is not supported"));
    }
    if (next == values.size()) {
      return absl::InvalidArgumentError("not enough values for a format");
    }
    const Value& value = values[next++];
    if (kind == 'd' && !value.is_number()) {
      return absl::InvalidArgumentError(absl::StrCat("%d needs a number, not ", value.type_name()));
    }
    LAMINA_ASSIGN_OR_RETURN(const Value shown,
                            kind == 'd' ? Whole(value) : absl::StatusOr<Value>(value));
    LAMINA_ASSIGN_OR_RETURN(const std::string text,
                            kind == 'r' ? Repr(budget, shown) : Str(budget, shown));
    out += text;
  }
  if (next != values.size()) {
    return absl::InvalidArgumentError("too many values for a format");
  }
  LAMINA_RETURN_IF_ERROR(budget.SpendBytes(out.size()));
  return Value::String(std::move(out));
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}});
}

absl::StatusOr<bool> Equal(Budget& budget, const Value& a, const Value& b) {
  LAMINA_RETURN_IF_ERROR(budget.Spend(1));
  if (a.is_undefined() || b.is_undefined()) {
    return a.is_undefined() && b.is_undefined();
  }
  if (a.string() != nullptr && b.string() != nullptr) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(std::min(a.string()->size(), b.string()->size())));
    return *a.string() == *b.string();
  }
  if (a.mapping() != nullptr && b.mapping() != nullptr) {
    return EqualDicts(budget, *a.mapping(), *b.mapping());
  }
  if (a.sequence() != nullptr && b.sequence() != nullptr) {
    if (a.sequence() == b.sequence()) {
      return true;
    }
    return a.sequence()->kind == b.sequence()->kind && IsIndexable(*a.sequence())
               ? EqualItems(budget, a.sequence()->items, b.sequence()->items)
               : absl::StatusOr<bool>(false);
  }
  return SameKey(a, b) || (a.name_space() != nullptr && a.name_space() == b.name_space()) ||
         (a.callable() != nullptr && a.callable() == b.callable());
}

absl::StatusOr<bool> Less(Budget& budget, const Value& a, const Value& b) {
  LAMINA_RETURN_IF_ERROR(budget.Spend(1));
  if (a.is_number() && b.is_number()) {
    int64_t left = 0;
    int64_t right = 0;
    return a.AsInt(&left) && b.AsInt(&right) ? left < right : AsDouble(a) < AsDouble(b);
  }
  if (a.string() != nullptr && b.string() != nullptr) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(std::min(a.string()->size(), b.string()->size())));
    return *a.string() < *b.string();  // Bytes of UTF-8 sort as characters do.
  }
  const Sequence* left = a.sequence();
  const Sequence* right = b.sequence();
  if (left == nullptr || right == nullptr || left->kind != right->kind ||
      left->kind > SequenceKind::kTuple) {
    return TypesRefuse("<", a, b);
  }
  for (size_t i = 0; i < std::min(left->items.size(), right->items.size()); ++i) {
    LAMINA_ASSIGN_OR_RETURN(const bool same, Equal(budget, left->items[i], right->items[i]));
    if (!same) {
      return Less(budget, left->items[i], right->items[i]);
    }
  }
  return left->items.size() < right->items.size();
}

absl::StatusOr<bool> Contains(Budget& budget, const Value& item, const Value& container) {
  if (const std::string* text = container.string()) {
    if (item.string() == nullptr) {
      return TypesRefuse("in", item, container);
    }
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(text->size()));
    return FindText(*text, *item.string()) != absl::string_view::npos;
  }
  if (const Mapping* mapping = container.mapping()) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(1 + mapping->entries.size() / 4));
    return mapping->Find(item) != nullptr;
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(budget, container));
  for (const Value& candidate : items) {
    LAMINA_ASSIGN_OR_RETURN(const bool same, Equal(budget, candidate, item));
    if (same) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<Value> Arithmetic(Budget& budget, absl::string_view op, const Value& a,
                                 const Value& b) {
  int64_t left = 0;
  int64_t right = 0;
  if (a.is_number() && b.is_number()) {
    return a.AsInt(&left) && b.AsInt(&right) ? IntArithmetic(op, left, right)
                                             : FloatArithmetic(op, AsDouble(a), AsDouble(b));
  }
  if (op == "+") {
    return Add(budget, a, b);
  }
  if (op == "*" && IsRepeatable(a) && b.AsInt(&right)) {
    return Repeat(budget, a, right);
  }
  if (op == "*" && IsRepeatable(b) && a.AsInt(&left)) {
    return Repeat(budget, b, left);
  }
  if (op == "%" && a.string() != nullptr && !b.is_undefined()) {
    return FormatPercent(budget, *a.string(), b);
  }
  return TypesRefuse(op, a, b);
}

}  // namespace lamina::jinja
