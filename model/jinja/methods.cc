// SPDX-License-Identifier: Apache-2.0
//
// The methods of Python's str, list, tuple and dict, and those of `loop`.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"
#include "model/jinja/text.h"

namespace lamina::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Names = absl::Span<const absl::string_view>;

struct Call {
  absl::string_view name;
  const Value& self;
  Interpreter& interpreter;
  Arguments& arguments;

  Budget& budget() const { return interpreter.budget(); }
  const std::string& text() const { return *self.string(); }
  absl::StatusOr<std::vector<Value>> Take(Names names, size_t required) const {
    return Bind(name, arguments, names, required);
  }
};

Result Strings(const std::vector<std::string>& texts) {
  std::vector<Value> out;
  for (const std::string& text : texts) {
    out.push_back(Value::String(text));
  }
  return Value::List(std::move(out));
}

Result Strip(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"chars"}, 0));
  const Side side = call.name == "strip" ? kBoth : call.name == "lstrip" ? kLeft : kRight;
  if (given[0].is_undefined() || given[0].is_none()) {
    return Value::String(std::string(StripSpace(call.text(), side)));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string set, StringOr(call.name, given[0], ""));
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + call.text().size() * set.size() / 16));
  return Value::String(std::string(StripCharacters(call.text(), set, side)));
}

Result SplitText(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"sep", "maxsplit"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const int64_t limit, IntOr(call.name, given[1], -1));
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + call.text().size() / 4));
  const bool reverse = call.name == "rsplit";
  if (given[0].is_undefined() || given[0].is_none()) {
    return Strings(reverse ? ReverseSplitSpace(call.text(), limit)
                           : SplitSpace(call.text(), limit));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string separator, StringOr(call.name, given[0], ""));
  if (separator.empty()) {
    return absl::InvalidArgumentError("empty separator");
  }
  return Strings(reverse ? ReverseSplit(call.text(), separator, limit)
                         : Split(call.text(), separator, limit));
}

Result SplitTextLines(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"keepends"}, 0));
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + call.text().size() / 4));
  return Strings(SplitLines(call.text(), BoolOr(given[0], false)));
}

Result Partition(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"sep"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::string separator, StringOr(call.name, given[0], ""));
  if (separator.empty()) {
    return absl::InvalidArgumentError("empty separator");
  }
  const std::string& text = call.text();
  const bool reverse = call.name == "rpartition";
  const size_t at = reverse ? FindLastText(text, separator) : FindText(text, separator);
  std::vector<std::string> parts = {text, "", ""};
  if (at != std::string::npos) {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  } else if (reverse) {
    std::swap(parts[0], parts[2]);
  }
  return Value::List({Value::String(parts[0]), Value::String(parts[1]), Value::String(parts[2])},
                     SequenceKind::kTuple);
}

// startswith and endswith, with one text or a tuple of them.
Result Affix(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"prefix"}, 1));
  std::vector<Value> candidates = {given[0]};
  if (given[0].sequence() != nullptr && given[0].sequence()->kind == SequenceKind::kTuple) {
    LAMINA_RETURN_IF_ERROR(call.budget().Spend(given[0].sequence()->items.size()));
    candidates = given[0].sequence()->items;
  }
  for (const Value& candidate : candidates) {
    LAMINA_RETURN_IF_ERROR(
        call.budget().SpendBytes(candidate.string() == nullptr ? 0 : candidate.string()->size()));
    LAMINA_ASSIGN_OR_RETURN(const std::string affix, StringOr(call.name, candidate, ""));
    if (candidate.is_undefined()) {
      return absl::InvalidArgumentError(absl::StrCat("'", call.name, "' needs text"));
    }
    if (call.name == "startswith" ? absl::StartsWith(call.text(), affix)
                                  : absl::EndsWith(call.text(), affix)) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

Result RemoveAffix(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"affix"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::string affix, StringOr(call.name, given[0], ""));
  absl::string_view text = call.text();
  if (call.name == "removeprefix") {
    absl::ConsumePrefix(&text, affix);
  } else {
    absl::ConsumeSuffix(&text, affix);
  }
  return Value::String(std::string(text));
}

Result ChangeCase(const Call& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(4 * call.text().size()));
  if (call.name == "upper") {
    return Value::String(ToUpper(call.text()));
  }
  if (call.name == "lower") {
    return Value::String(ToLower(call.text()));
  }
  if (call.name == "capitalize") {
    return Value::String(Capitalize(call.text()));
  }
  // title: a letter after anything that is no letter is upper case.
  std::string out;
  bool inside = false;
  for (const std::string& character : SplitCharacters(call.text())) {
    out += inside ? ToLower(character) : ToUpper(character);
    inside = IsAlphabetic(Characters(character)[0]);
  }
  return Value::String(std::move(out));
}

Result Replace(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"old", "new", "count"}, 2));
  LAMINA_ASSIGN_OR_RETURN(const std::string from, StringOr(call.name, given[0], ""));
  LAMINA_ASSIGN_OR_RETURN(const std::string to, StringOr(call.name, given[1], ""));
  LAMINA_ASSIGN_OR_RETURN(const int64_t limit, IntOr(call.name, given[2], -1));
  std::vector<std::string> parts;
  if (from.empty()) {
    // Python puts it before each character and at the end.
    parts = SplitCharacters(call.text());
    parts.insert(parts.begin(), "");
    parts.emplace_back();
    if (limit >= 0 && static_cast<size_t>(limit) < parts.size()) {
      return absl::UnimplementedError("'replace' of the empty text with a count is not supported");
    }
  } else {
    parts = Split(call.text(), from, limit);
  }
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(
      parts.size() + (call.text().size() + parts.size() * to.size()) / kBytesPerStep));
  return Value::String(absl::StrJoin(parts, to));
}

// find, rfind, index, rindex: positions in characters, -1 or an error when there is none.
Result Find(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"sub"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::string sub, StringOr(call.name, given[0], ""));
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(call.text().size()));
  const size_t at = absl::StartsWith(call.name, "r") ? FindLastText(call.text(), sub)
                                                     : FindText(call.text(), sub);
  if (at == std::string::npos) {
    return absl::EndsWith(call.name, "index")
               ? Result(absl::InvalidArgumentError("substring not found"))
               : Result(Value::Int(-1));
  }
  return Value::Int(
      static_cast<int64_t>(CountCharacters(absl::string_view(call.text()).substr(0, at))));
}

Result CountText(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"sub"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::string sub, StringOr(call.name, given[0], ""));
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + call.text().size() / 4));
  return Value::Int(static_cast<int64_t>(sub.empty() ? CountCharacters(call.text()) + 1
                                                     : Split(call.text(), sub, -1).size() - 1));
}

Result JoinText(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"iterable"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), given[0]));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].string() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("'join' needs texts, not ", items[i].type_name()));
    }
    LAMINA_RETURN_IF_ERROR(
        call.budget().SpendBytes(call.text().size() + items[i].string()->size()));
    absl::StrAppend(&out, i == 0 ? "" : call.text(), *items[i].string());
  }
  return Value::String(std::move(out));
}

// Appends what the field {name}, {2} or {} of a format stands for; `next` counts the empty ones.
absl::Status AppendField(const Call& call, const std::string& field, size_t* next,
                         std::string* out) {
  if (field.find_first_of(".[!:") != std::string::npos) {
    return absl::UnimplementedError(
        absl::StrCat("the field {", field, "} of 'format' is not supported"));
  }
  const std::vector<Value>& positional = call.arguments.positional;
  size_t place = field.empty() ? (*next)++ : positional.size();
  const Value* value = nullptr;
  if ((field.empty() || absl::SimpleAtoi(field, &place)) && place < positional.size()) {
    value = &positional[place];
  }
  for (const auto& [name, argument] : call.arguments.named) {
    value = name == field ? &argument : value;
  }
  if (value == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("'format' has no value for the field {", field, "}"));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget(), *value));
  out->append(text);
  return absl::OkStatus();
}

// Plain fields alone: no conversions, no widths.
Result FormatText(const Call& call) {
  const std::string& format = call.text();
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    const bool doubled = i + 1 < format.size() && format[i + 1] == c;
    if ((c != '{' && c != '}') || doubled) {
      out.push_back(c);
      i += (c == '{' || c == '}') ? 1 : 0;
      continue;
    }
    const size_t end = c == '{' ? format.find('}', i) : std::string::npos;
    if (end == std::string::npos) {
      return absl::InvalidArgumentError("'format' has a single brace");
    }
    LAMINA_RETURN_IF_ERROR(AppendField(call, format.substr(i + 1, end - i - 1), &next, &out));
    i = end;
  }
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(out.size()));
  return Value::String(std::move(out));
}

// isdigit and the like: all characters are, and there is one. isupper and islower: there is a
// letter with case, and none of the other case.
Result Classify(const Call& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(4 * call.text().size()));
  const std::vector<uint32_t> characters = Characters(call.text());
  const auto all = [&characters](const auto& is) {
    return Value::Bool(!characters.empty() &&
                       std::all_of(characters.begin(), characters.end(), is));
  };
  const auto any = [&characters](const auto& is) {
    return std::any_of(characters.begin(), characters.end(), is);
  };
  if (call.name == "isdigit" || call.name == "isdecimal" || call.name == "isnumeric") {
    return all(IsNumeric);
  }
  if (call.name == "isalpha") {
    return all(IsAlphabetic);
  }
  if (call.name == "isalnum") {
    return all([](uint32_t c) { return IsAlphabetic(c) || IsNumeric(c); });
  }
  if (call.name == "isspace") {
    return all(IsSpace);
  }
  return Value::Bool(call.name == "isupper" ? any(IsUpper) && !any(IsLower)
                                            : any(IsLower) && !any(IsUpper));
}

Result CountItems(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"value"}, 1));
  int64_t count = 0;
  for (size_t i = 0; i < call.self.sequence()->items.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(const bool same,
                            Equal(call.budget(), call.self.sequence()->items[i], given[0]));
    if (same && call.name == "index") {
      return Value::Int(static_cast<int64_t>(i));
    }
    count += same ? 1 : 0;
  }
  return call.name == "index" ? Result(absl::InvalidArgumentError("the value is not in the list"))
                              : Result(Value::Int(count));
}

Result Copy(const Call& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  return call.self;
}

Result Get(const Call& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"key", "default"}, 1));
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + call.self.mapping()->entries.size() / 4));
  const Value* found = call.self.mapping()->Find(given[0]);
  if (found != nullptr) {
    return *found;
  }
  return call.arguments.positional.size() > 1 || !call.arguments.named.empty() ? given[1] : Value();
}

Result DictView(const Call& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  const Mapping& mapping = *call.self.mapping();
  LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + mapping.entries.size()));
  std::vector<Value> out;
  for (const auto& [key, value] : mapping.entries) {
    if (call.name == "keys") {
      out.push_back(key);
    } else if (call.name == "values") {
      out.push_back(value);
    } else {
      LAMINA_ASSIGN_OR_RETURN(Value pair, Value::List({key, value}, SequenceKind::kTuple));
      out.push_back(std::move(pair));
    }
  }
  return Value::List(std::move(out), SequenceKind::kView);
}

Result Cycle(const Call& call) {
  if (call.arguments.positional.empty() || !call.arguments.named.empty()) {
    return absl::InvalidArgumentError("'cycle' needs positional arguments");
  }
  return call.arguments.positional[call.self.loop()->index0 % call.arguments.positional.size()];
}

Result Changed(const Call& call) {
  Loop& loop = *call.self.loop();
  bool same = loop.changed_called && loop.changed.size() == call.arguments.positional.size();
  for (size_t i = 0; same && i < loop.changed.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(same,
                            Equal(call.budget(), loop.changed[i], call.arguments.positional[i]));
  }
  if (!loop.changed_called) {
    call.interpreter.Remember(call.self);
  }
  loop.changed_called = true;
  loop.changed = call.arguments.positional;
  return Value::Bool(!same);
}

struct Method {
  absl::string_view name;
  Result (*call)(const Call&);
};

constexpr Method kStringMethods[] = {
    {"strip", Strip},
    {"lstrip", Strip},
    {"rstrip", Strip},
    {"split", SplitText},
    {"rsplit", SplitText},
    {"splitlines", SplitTextLines},
    {"partition", Partition},
    {"rpartition", Partition},
    {"startswith", Affix},
    {"endswith", Affix},
    {"removeprefix", RemoveAffix},
    {"removesuffix", RemoveAffix},
    {"upper", ChangeCase},
    {"lower", ChangeCase},
    {"capitalize", ChangeCase},
    {"title", ChangeCase},
    {"replace", Replace},
    {"find", Find},
    {"rfind", Find},
    {"index", Find},
    {"rindex", Find},
    {"count", CountText},
    {"join", JoinText},
    {"isdigit", Classify},
    {"isdecimal", Classify},
    {"isnumeric", Classify},
    {"isalpha", Classify},
    {"isalnum", Classify},
    {"isspace", Classify},
    {"isupper", Classify},
    {"islower", Classify},
    {"format", FormatText},
};
constexpr Method kListMethods[] = {{"count", CountItems}, {"index", CountItems}, {"copy", Copy}};
constexpr Method kTupleMethods[] = {{"count", CountItems}, {"index", CountItems}};
constexpr Method kDictMethods[] = {
    {"get", Get}, {"items", DictView}, {"keys", DictView}, {"values", DictView}, {"copy", Copy}};
constexpr Method kLoopMethods[] = {{"cycle", Cycle}, {"changed", Changed}};

// Python has them, we do not.
constexpr absl::string_view kOtherStringMethods[] = {
    "casefold",  "center",       "encode",      "expandtabs", "format_map",
    "isascii",   "isidentifier", "isprintable", "istitle",    "ljust",
    "maketrans", "rjust",        "swapcase",    "translate",  "zfill"};
constexpr absl::string_view kOtherDictMethods[] = {"fromkeys"};
// Refused by the sandbox, as in transformers.
constexpr absl::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};
constexpr absl::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

Names OtherMethods(const Value& value) {
  return value.string() != nullptr    ? Names(kOtherStringMethods)
         : value.mapping() != nullptr ? Names(kOtherDictMethods)
                                      : Names();
}

Names Changes(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.mapping() != nullptr                                     ? Names(kDictChanges)
         : sequence != nullptr && sequence->kind == SequenceKind::kList ? Names(kListChanges)
                                                                        : Names();
}

absl::Span<const Method> MethodsOf(const Value& value) {
  if (value.string() != nullptr) {
    return kStringMethods;
  }
  if (value.mapping() != nullptr) {
    return kDictMethods;
  }
  if (value.loop() != nullptr) {
    return kLoopMethods;
  }
  if (const Sequence* sequence = value.sequence()) {
    switch (sequence->kind) {
      case SequenceKind::kList:
        return kListMethods;
      case SequenceKind::kTuple:
      case SequenceKind::kRange:
        return kTupleMethods;
      case SequenceKind::kView:
      case SequenceKind::kIterator:
        break;
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<Value> FindMethod(const Value& value, absl::string_view name) {
  for (const Method& method : MethodsOf(value)) {
    if (method.name == name) {
      LAMINA_RETURN_IF_ERROR(CheckDepth(value.depth() + 1));
      return Value::Function(
          std::string(name),
          [method, self = value](Interpreter& interpreter, Arguments& arguments) -> Result {
            LAMINA_RETURN_IF_ERROR(interpreter.budget().SpendBytes(
                self.string() == nullptr ? 0 : self.string()->size()));
            return method.call({method.name, self, interpreter, arguments});
          },
          value.depth() + 1);
    }
  }
  const Names changes = Changes(value);
  if (std::find(changes.begin(), changes.end(), name) != changes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' of a ", value.type_name(),
                                                   " changes it, which templates may not do"));
  }
  const Names others = OtherMethods(value);
  if (std::find(others.begin(), others.end(), name) != others.end()) {
    return absl::UnimplementedError(
        absl::StrCat("the method '", name, "' of a ", value.type_name(), " is not supported"));
  }
  return Value::Undefined(absl::StrCat("'", value.type_name(), "' has no attribute '", name, "'"));
}

}  // namespace lamina::jinja
