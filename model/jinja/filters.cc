// SPDX-License-Identifier: Apache-2.0
//
// Filters by name, and those over texts and numbers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "model/jinja/filters_internal.h"
#include "model/jinja/text.h"

namespace lamina::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// Jinja's, but not ours.
constexpr absl::string_view kUnsupported[] = {
    "attr",      "filesizeformat", "forceescape", "groupby",   "pprint",   "random", "slice",
    "striptags", "urlencode",      "urlize",      "wordcount", "wordwrap", "xmlattr"};

constexpr int64_t kWidthMax = 10'000;
constexpr int64_t kPrecisionMax = 300;

Result ChangeCase(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget(), call.value));
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(4 * text.size()));
  if (call.name == "upper") {
    return Value::String(ToUpper(text));
  }
  if (call.name == "lower") {
    return Value::String(ToLower(text));
  }
  if (call.name == "capitalize") {
    return Value::String(Capitalize(text));
  }
  // title: words begin after white space and opening brackets.
  std::string out;
  bool first = true;
  for (const std::string& character : SplitCharacters(text)) {
    out += first ? ToUpper(character) : ToLower(character);
    first = IsSpace(Characters(character)[0]) ||
            absl::string_view("-({[<").find(character[0]) != absl::string_view::npos;
  }
  return Value::String(std::move(out));
}

Result Trim(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"chars"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget(), call.value));
  if (given[0].is_undefined() || given[0].is_none()) {
    return Value::String(std::string(StripSpace(text, kBoth)));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string set, StringOr(call.name, given[0], ""));
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + text.size() * set.size() / 16));
  return Value::String(std::string(StripCharacters(text, set, kBoth)));
}

Result Replace(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"old", "new", "count"}, 2));
  LAMINA_ASSIGN_OR_RETURN(std::string text, Str(call.budget(), call.value));
  LAMINA_ASSIGN_OR_RETURN(std::string from, Str(call.budget(), given[0]));
  LAMINA_ASSIGN_OR_RETURN(std::string to, Str(call.budget(), given[1]));
  Arguments arguments{.positional = {Value::String(std::move(from)), Value::String(std::move(to))}};
  if (!given[2].is_undefined() && !given[2].is_none()) {
    arguments.positional.push_back(given[2]);
  }
  LAMINA_ASSIGN_OR_RETURN(const Value method,
                          FindMethod(Value::String(std::move(text)), "replace"));
  return call.interpreter.Call(method, std::move(arguments));
}

Result Indent(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"width", "first", "blank"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::string text, StringOr(call.name, call.value, ""));
  if (call.value.is_undefined()) {
    return absl::InvalidArgumentError(*call.value.undefined().what);
  }
  std::string indentation;
  if (const std::string* literal = given[0].string()) {
    indentation = *literal;
  } else {
    LAMINA_ASSIGN_OR_RETURN(const int64_t width, IntOr(call.name, given[0], 4));
    indentation.assign(static_cast<size_t>(std::clamp<int64_t>(width, 0, kWidthMax)), ' ');
  }
  const bool blank = BoolOr(given[2], false);
  const std::vector<std::string> lines = SplitLines(text + "\n", false);
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(
      lines.size() + (text.size() + lines.size() * indentation.size()) / kBytesPerStep));
  std::string out = BoolOr(given[1], false) ? indentation : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool indented = i > 0 && (blank || !lines[i].empty());
    absl::StrAppend(&out, i == 0 ? "" : "\n", indented ? indentation : "", lines[i]);
  }
  return Value::String(std::move(out));
}

Result Truncate(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"length", "killwords", "end", "leeway"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::string text, StringOr(call.name, call.value, ""));
  LAMINA_ASSIGN_OR_RETURN(const int64_t length, IntOr(call.name, given[0], 255));
  LAMINA_ASSIGN_OR_RETURN(const std::string end, StringOr(call.name, given[2], "..."));
  LAMINA_ASSIGN_OR_RETURN(const int64_t leeway, IntOr(call.name, given[3], 5));
  const auto end_length = static_cast<int64_t>(CountCharacters(end));
  if (length < end_length || leeway < 0) {
    return absl::InvalidArgumentError("'truncate' has a length shorter than its end");
  }
  const auto have = static_cast<int64_t>(CountCharacters(text));
  if (have <= length || have - length <= leeway) {
    return Value::String(text);
  }
  std::string cut = text.substr(0, ByteOffset(text, static_cast<size_t>(length - end_length)));
  if (!BoolOr(given[1], false)) {
    cut = ReverseSplit(cut, " ", 1)[0];
  }
  return Value::String(cut + end);
}

Result Center(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"width"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const int64_t width, IntOr(call.name, given[0], 80));
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget(), call.value));
  if (width > kWidthMax) {
    return absl::InvalidArgumentError(absl::StrCat("'center' is wider than ", kWidthMax));
  }
  const int64_t padding = width - static_cast<int64_t>(CountCharacters(text));
  if (padding <= 0) {
    return Value::String(text);
  }
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(static_cast<size_t>(padding)));
  const int64_t left = padding / 2 + (padding & width & 1);
  return Value::String(absl::StrCat(std::string(static_cast<size_t>(left), ' '), text,
                                    std::string(static_cast<size_t>(padding - left), ' ')));
}

Result Escape(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget(), call.value));
  if (call.value.is_markup()) {
    return call.value;
  }
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(6 * text.size()));
  return Value::String(EscapeHtml(text), true);
}

Result Safe(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_ASSIGN_OR_RETURN(std::string text, Str(call.budget(), call.value));
  return Value::String(std::move(text), true);
}

Result ToString(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  if (call.value.string() != nullptr) {
    return call.value;
  }
  LAMINA_ASSIGN_OR_RETURN(std::string text, Str(call.budget(), call.value));
  return Value::String(std::move(text));
}

Result Format(const FilterCall& call) {
  if (!call.arguments.named.empty()) {
    return absl::UnimplementedError("'format' with named arguments is not supported");
  }
  LAMINA_ASSIGN_OR_RETURN(std::string text, Str(call.budget(), call.value));
  LAMINA_ASSIGN_OR_RETURN(const Value values,
                          Value::List(std::move(call.arguments.positional), SequenceKind::kTuple));
  return Arithmetic(call.budget(), "%", Value::String(std::move(text)), values);
}

Result Default(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"default_value", "boolean"}, 0));
  if (call.value.is_undefined() || (BoolOr(given[1], false) && !call.value.truthy())) {
    const bool missing = call.arguments.positional.empty() && given[0].is_undefined();
    return missing ? Value::String("") : given[0];
  }
  return call.value;
}

Result Absolute(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  int64_t whole = 0;
  if (const double* real = call.value.floating()) {
    return Value::Float(std::fabs(*real));
  }
  if (!call.value.AsInt(&whole)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'abs' needs a number, not ", call.value.type_name()));
  }
  return whole < 0 ? Arithmetic(call.budget(), "-", Value::Int(0), call.value)
                   : Result(Value::Int(whole));
}

// A text as Python reads numbers: white space around, single underscores between digits.
std::string PlainNumber(absl::string_view text) {
  text = StripSpace(text, kBoth);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                         absl::ascii_isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         absl::ascii_isdigit(static_cast<unsigned char>(text[i + 1]));
    if (!between) {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool ReadFloat(const Value& value, double* out) {
  int64_t whole = 0;
  if (value.AsInt(&whole)) {
    *out = static_cast<double>(whole);
    return true;
  }
  if (const double* real = value.floating()) {
    *out = *real;
    return true;
  }
  return value.string() != nullptr && absl::SimpleAtod(PlainNumber(*value.string()), out);
}

Result ToInt(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"default", "base"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const int64_t base, IntOr(call.name, given[1], 10));
  if (base != 10) {
    return absl::UnimplementedError("'int' with another base than 10 is not supported");
  }
  int64_t whole = 0;
  if (call.value.AsInt(&whole) || (call.value.string() != nullptr &&
                                   absl::SimpleAtoi(PlainNumber(*call.value.string()), &whole))) {
    return Value::Int(whole);
  }
  double real = 0;
  if (ReadFloat(call.value, &real) && std::isfinite(real)) {
    if (std::fabs(real) >= 9.2e18) {
      return absl::InvalidArgumentError("'int' gives a number that does not fit 64 bits");
    }
    return Value::Int(static_cast<int64_t>(real));
  }
  return given[0].is_undefined() ? Value::Int(0) : given[0];
}

Result ToFloat(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"default"}, 0));
  double real = 0;
  if (ReadFloat(call.value, &real)) {
    return Value::Float(real);
  }
  return given[0].is_undefined() ? Value::Float(0) : given[0];
}

Result Round(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"precision", "method"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const int64_t precision, IntOr(call.name, given[0], 0));
  LAMINA_ASSIGN_OR_RETURN(const std::string method, StringOr(call.name, given[1], "common"));
  double real = 0;
  if (call.value.string() != nullptr || !ReadFloat(call.value, &real)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'round' needs a number, not ", call.value.type_name()));
  }
  if (precision < 0 || precision > kPrecisionMax) {
    return absl::UnimplementedError(
        absl::StrCat("'round' to ", precision, " digits is not supported"));
  }
  if (method == "common") {
    if (call.value.floating() == nullptr || !std::isfinite(real)) {
      return call.value;
    }
    double rounded = 0;
    static_cast<void>(
        absl::SimpleAtod(absl::StrFormat("%.*f", static_cast<int>(precision), real), &rounded));
    return Value::Float(rounded);
  }
  if (method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("'round' knows the methods common, ceil and floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value::Float((method == "ceil" ? std::ceil(real * scale) : std::floor(real * scale)) /
                      scale);
}

Result Json(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given,
                          call.Take({"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  JsonOptions options{.ascii = BoolOr(given[0], false), .sort_keys = BoolOr(given[3], false)};
  if (const std::string* indent = given[1].string()) {
    options.indent = *indent;
  } else if (!given[1].is_undefined() && !given[1].is_none()) {
    LAMINA_ASSIGN_OR_RETURN(const int64_t width, IntOr(call.name, given[1], 0));
    options.indent =
        std::string(static_cast<size_t>(std::clamp<int64_t>(width, 0, kWidthMax)), ' ');
  }
  if (!given[2].is_undefined() && !given[2].is_none()) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> pair, Iterate(call.budget(), given[2]));
    if (pair.size() != 2) {
      return absl::InvalidArgumentError("'separators' of 'tojson' needs two texts");
    }
    LAMINA_ASSIGN_OR_RETURN(options.item_separator, StringOr(call.name, pair[0], ""));
    LAMINA_ASSIGN_OR_RETURN(options.key_separator, StringOr(call.name, pair[1], ""));
  }
  LAMINA_ASSIGN_OR_RETURN(std::string text, ToJson(call.budget(), call.value, options));
  return Value::String(std::move(text));
}

constexpr Filter kTextFilters[] = {
    {"abs", Absolute},     {"capitalize", ChangeCase},
    {"center", Center},    {"d", Default},
    {"default", Default},  {"e", Escape},
    {"escape", Escape},    {"float", ToFloat},
    {"format", Format},    {"indent", Indent},
    {"int", ToInt},        {"lower", ChangeCase},
    {"replace", Replace},  {"round", Round},
    {"safe", Safe},        {"string", ToString},
    {"title", ChangeCase}, {"tojson", Json},
    {"trim", Trim},        {"truncate", Truncate},
    {"upper", ChangeCase},
};

const Filter* FindFilter(absl::string_view name) {
  for (const absl::Span<const Filter> table : {TextFilters(), SequenceFilters()}) {
    for (const Filter& filter : table) {
      if (filter.name == name) {
        return &filter;
      }
    }
  }
  return nullptr;
}

}  // namespace

absl::Span<const Filter> TextFilters() { return kTextFilters; }

absl::Status CheckFilterName(absl::string_view name) {
  if (FindFilter(name) != nullptr) {
    return absl::OkStatus();
  }
  if (std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported)) {
    return absl::UnimplementedError(absl::StrCat("the filter '", name, "' is not supported"));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no filter named '", name, "'"));
}

absl::StatusOr<Value> CallFilter(Interpreter& interpreter, absl::string_view name,
                                 const Value& value, Arguments arguments) {
  LAMINA_RETURN_IF_ERROR(interpreter.budget().Spend(1));
  const Filter* filter = FindFilter(name);
  if (filter == nullptr) {
    return CheckFilterName(name);
  }
  LAMINA_RETURN_IF_ERROR(SpendArguments(interpreter.budget(), arguments));
  LAMINA_RETURN_IF_ERROR(
      interpreter.budget().SpendBytes(value.string() == nullptr ? 0 : value.string()->size()));
  return filter->call({filter->name, value, interpreter, arguments});
}

}  // namespace lamina::jinja
