// SPDX-License-Identifier: Apache-2.0
//
// The texts of values: str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "model/jinja/operators.h"
#include "model/jinja/text.h"
#include "model/tokenizer/utf8.h"

namespace lamina::jinja {
namespace {

std::string QuotedRepr(absl::string_view text) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const char quote = has_single && text.find('"') == absl::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const uint32_t c : Characters(text)) {
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      model::AppendUtf8(c, &out);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  out.push_back(quote);
  return out;
}

absl::StatusOr<std::string> JoinRepr(Budget& budget, const Sequence& sequence) {
  const bool tuple = sequence.kind == SequenceKind::kTuple;
  std::string out = tuple ? "(" : "[";
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(const std::string item, Repr(budget, sequence.items[i]));
    absl::StrAppend(&out, i == 0 ? "" : ", ", item);
  }
  return absl::StrCat(out, tuple && sequence.items.size() == 1 ? "," : "", tuple ? ")" : "]");
}

absl::StatusOr<std::string> DictRepr(Budget& budget, const Mapping& mapping) {
  std::string out = "{";
  for (const auto& [key, value] : mapping.entries) {
    LAMINA_ASSIGN_OR_RETURN(const std::string name, Repr(budget, key));
    LAMINA_ASSIGN_OR_RETURN(const std::string text, Repr(budget, value));
    absl::StrAppend(&out, out.size() == 1 ? "" : ", ", name, ": ", text);
  }
  return out + "}";
}

void AppendJsonString(absl::string_view text, bool ascii, std::string* out) {
  out->push_back('"');
  for (const uint32_t c : Characters(text)) {
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\b':
        out->append("\\b");
        break;
      case '\f':
        out->append("\\f");
        break;
      default:
        if (c >= 0x10000 && ascii) {
          absl::StrAppendFormat(out, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                                0xDC00 + ((c - 0x10000) & 0x3FF));
        } else if (c < 0x20 || (ascii && c >= 0x7f && c != 0x7f)) {
          absl::StrAppendFormat(out, "\\u%04x", c);
        } else {
          model::AppendUtf8(c, out);
        }
    }
  }
  out->push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonOptions& options)
      : budget_(budget),
        options_(options),
        separator_(options.item_separator.value_or(options.indent.has_value() ? "," : ", ")) {}

  absl::Status Write(const Value& value, size_t level) {
    LAMINA_RETURN_IF_ERROR(budget_.Spend(1));
    if (const Sequence* items = value.sequence();
        items != nullptr &&
        (items->kind == SequenceKind::kList || items->kind == SequenceKind::kTuple)) {
      return WriteList(*items, level);
    }
    if (const Mapping* mapping = value.mapping()) {
      return WriteDict(*mapping, level);
    }
    if (const std::string* text = value.string()) {
      LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(text->size()));
      AppendJsonString(*text, options_.ascii, &out_);
      return absl::OkStatus();
    }
    LAMINA_ASSIGN_OR_RETURN(const std::string plain, Scalar(value));
    out_ += plain;
    return absl::OkStatus();
  }

  std::string Take() { return std::move(out_); }

 private:
  static absl::StatusOr<std::string> Scalar(const Value& value) {
    if (value.is_none()) {
      return std::string("null");
    }
    if (const bool* flag = value.boolean()) {
      return std::string(*flag ? "true" : "false");
    }
    if (const int64_t* whole = value.integer()) {
      return absl::StrCat(*whole);
    }
    if (const double* real = value.floating()) {
      if (!std::isfinite(*real)) {
        return std::string(std::isnan(*real) ? "NaN" : *real > 0 ? "Infinity" : "-Infinity");
      }
      return FloatRepr(*real);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "a value of type ", value.type_name(), " cannot be written as JSON",
        value.is_undefined() ? absl::StrCat(": ", *value.undefined().what) : std::string()));
  }

  // Before item `i` of a list or dict.
  absl::Status Separate(size_t i) {
    if (i > 0) {
      LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(separator_.size()));
      out_ += separator_;
    }
    return absl::OkStatus();
  }

  absl::Status NewLine(size_t level) {
    if (options_.indent.has_value()) {
      LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(level * options_.indent->size()));
      out_.push_back('\n');
      for (size_t i = 0; i < level; ++i) {
        out_ += *options_.indent;
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteList(const Sequence& list, size_t level) {
    if (list.items.empty()) {
      out_ += "[]";
      return absl::OkStatus();
    }
    out_.push_back('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      LAMINA_RETURN_IF_ERROR(Separate(i));
      LAMINA_RETURN_IF_ERROR(NewLine(level + 1));
      LAMINA_RETURN_IF_ERROR(Write(list.items[i], level + 1));
    }
    LAMINA_RETURN_IF_ERROR(NewLine(level));
    out_.push_back(']');
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Mapping& mapping, size_t level) {
    if (mapping.entries.empty()) {
      out_ += "{}";
      return absl::OkStatus();
    }
    std::vector<std::pair<std::string, const Value*>> entries;
    for (const auto& [key, value] : mapping.entries) {
      std::string name;
      if (const std::string* text = key.string()) {
        name = *text;
      } else {
        LAMINA_ASSIGN_OR_RETURN(name, Scalar(key));
      }
      LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(name.size()));
      entries.emplace_back(std::move(name), &value);
    }
    if (options_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    out_.push_back('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      LAMINA_RETURN_IF_ERROR(Separate(i));
      LAMINA_RETURN_IF_ERROR(NewLine(level + 1));
      AppendJsonString(entries[i].first, options_.ascii, &out_);
      LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(options_.key_separator.size()));
      out_ += options_.key_separator;
      LAMINA_RETURN_IF_ERROR(Write(*entries[i].second, level + 1));
    }
    LAMINA_RETURN_IF_ERROR(NewLine(level));
    out_.push_back('}');
    return absl::OkStatus();
  }

  Budget& budget_;
  const JsonOptions& options_;
  const std::string separator_;
  std::string out_;
};

}  // namespace

// The shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
std::string FloatRepr(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const absl::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  const absl::string_view mantissa = text.substr(0, e);
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  if (exponent < -4 || exponent >= 16) {
    return absl::StrCat(mantissa, "e", exponent < 0 ? "-" : "+",
                        absl::StrFormat("%02d", std::abs(exponent)));
  }
  char fixed[400];
  const auto fixed_end =
      std::to_chars(fixed, fixed + sizeof(fixed), value, std::chars_format::fixed);
  std::string out(fixed, fixed_end.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

absl::StatusOr<std::string> Str(Budget& budget, const Value& value) {
  if (const std::string* text = value.string()) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(text->size()));
    return *text;
  }
  if (value.is_undefined()) {
    return std::string();
  }
  return Repr(budget, value);
}

absl::StatusOr<std::string> Repr(Budget& budget, const Value& value) {
  LAMINA_RETURN_IF_ERROR(budget.Spend(1));
  if (const std::string* text = value.string()) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(text->size()));
    return QuotedRepr(*text);
  }
  if (value.is_none()) {
    return std::string("None");
  }
  if (value.is_undefined()) {
    return std::string("Undefined");
  }
  if (const bool* flag = value.boolean()) {
    return std::string(*flag ? "True" : "False");
  }
  if (const int64_t* whole = value.integer()) {
    return absl::StrCat(*whole);
  }
  if (const double* real = value.floating()) {
    return FloatRepr(*real);
  }
  if (const Mapping* mapping = value.mapping()) {
    return DictRepr(budget, *mapping);
  }
  if (const Sequence* sequence = value.sequence();
      sequence != nullptr &&
      (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple)) {
    return JoinRepr(budget, *sequence);
  }
  return absl::UnimplementedError(
      absl::StrCat("the text of a value of type ", value.type_name(), " is not supported"));
}

absl::StatusOr<std::string> ToJson(Budget& budget, const Value& value, const JsonOptions& options) {
  JsonWriter writer(budget, options);
  LAMINA_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace lamina::jinja
