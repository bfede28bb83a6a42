// SPDX-License-Identifier: Apache-2.0
//
// Jinja's tests: what may stand behind `is`.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"
#include "model/jinja/text.h"

namespace lamina::jinja {
namespace {

using Result = absl::StatusOr<bool>;

struct Given {
  Interpreter& interpreter;
  const Value& value;
  const std::vector<Value>& arguments;

  Budget& budget() const { return interpreter.budget(); }
};

Result Remainder(const Given& given, int64_t divisor) {
  LAMINA_ASSIGN_OR_RETURN(const Value rest,
                          Arithmetic(given.budget(), "%", given.value, Value::Int(divisor)));
  return Equal(given.budget(), rest, Value::Int(0));
}

Result IsOdd(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const bool even, Remainder(given, 2));
  return !even;
}
Result IsEven(const Given& given) { return Remainder(given, 2); }
Result IsDivisible(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const int64_t divisor, IntOr("divisibleby", given.arguments[0], 0));
  return Remainder(given, divisor);
}
Result IsDefined(const Given& given) { return !given.value.is_undefined(); }
Result IsUndefined(const Given& given) { return given.value.is_undefined(); }
Result IsNone(const Given& given) { return given.value.is_none(); }
Result IsBoolean(const Given& given) { return given.value.boolean() != nullptr; }
Result IsTrue(const Given& given) {
  return given.value.boolean() != nullptr && *given.value.boolean();
}
Result IsFalse(const Given& given) {
  return given.value.boolean() != nullptr && !*given.value.boolean();
}
Result IsInteger(const Given& given) { return given.value.integer() != nullptr; }
Result IsFloat(const Given& given) { return given.value.floating() != nullptr; }
Result IsNumber(const Given& given) { return given.value.is_number(); }
Result IsString(const Given& given) { return given.value.string() != nullptr; }
Result IsMapping(const Given& given) { return given.value.mapping() != nullptr; }
Result IsCallable(const Given& given) {
  // An undefined is an object that can be called, if only to fail.
  return given.value.callable() != nullptr || given.value.loop() != nullptr ||
         given.value.is_undefined();
}
Result IsEscaped(const Given& given) { return given.value.is_markup(); }
Result IsSequence(const Given& given) {
  const Sequence* sequence = given.value.sequence();
  return given.value.is_undefined() || given.value.string() != nullptr ||
         given.value.mapping() != nullptr ||
         (sequence != nullptr && sequence->kind <= SequenceKind::kRange);
}
Result IsIterable(const Given& given) {
  return given.value.is_undefined() || given.value.string() != nullptr ||
         given.value.mapping() != nullptr || given.value.sequence() != nullptr ||
         given.value.loop() != nullptr;
}
Result IsCase(const Given& given, bool upper) {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(given.budget(), given.value));
  const std::vector<uint32_t> characters = Characters(text);
  return std::any_of(characters.begin(), characters.end(), upper ? IsUpper : IsLower) &&
         std::none_of(characters.begin(), characters.end(), upper ? IsLower : IsUpper);
}
Result IsUpperCase(const Given& given) { return IsCase(given, true); }
Result IsLowerCase(const Given& given) { return IsCase(given, false); }
Result IsSame(const Given& given) {
  const Value& a = given.value;
  const Value& b = given.arguments[0];
  // Objects are the same when they share; small numbers and texts cannot be told apart.
  if (a.data().index() != b.data().index()) {
    return false;
  }
  if (a.sequence() != nullptr || a.mapping() != nullptr) {
    return a.sequence() == b.sequence() && a.mapping() == b.mapping();
  }
  return Equal(given.budget(), a, b);
}
Result IsEqual(const Given& given) {
  return Equal(given.budget(), given.value, given.arguments[0]);
}
Result IsNotEqual(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const bool same, IsEqual(given));
  return !same;
}
Result IsLess(const Given& given) { return Less(given.budget(), given.value, given.arguments[0]); }
Result IsGreater(const Given& given) {
  return Less(given.budget(), given.arguments[0], given.value);
}
Result IsLessOrEqual(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const bool less, IsLess(given));
  return less ? Result(true) : IsEqual(given);
}
Result IsGreaterOrEqual(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const bool greater, IsGreater(given));
  return greater ? Result(true) : IsEqual(given);
}
Result IsIn(const Given& given) {
  return Contains(given.budget(), given.value, given.arguments[0]);
}
Result IsFilter(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const std::string name, StringOr("filter", given.value, ""));
  return CheckFilterName(name).ok();
}
Result IsTest(const Given& given) {
  LAMINA_ASSIGN_OR_RETURN(const std::string name, StringOr("test", given.value, ""));
  return CheckTestName(name).ok();
}

struct Test {
  absl::string_view name;
  Result (*call)(const Given&);
  bool takes_one = false;
};

constexpr Test kTests[] = {
    {"odd", IsOdd},
    {"even", IsEven},
    {"divisibleby", IsDivisible, true},
    {"defined", IsDefined},
    {"undefined", IsUndefined},
    {"none", IsNone},
    {"boolean", IsBoolean},
    {"true", IsTrue},
    {"false", IsFalse},
    {"integer", IsInteger},
    {"float", IsFloat},
    {"number", IsNumber},
    {"string", IsString},
    {"mapping", IsMapping},
    {"callable", IsCallable},
    {"escaped", IsEscaped},
    {"sequence", IsSequence},
    {"iterable", IsIterable},
    {"upper", IsUpperCase},
    {"lower", IsLowerCase},
    {"sameas", IsSame, true},
    {"eq", IsEqual, true},
    {"equalto", IsEqual, true},
    {"==", IsEqual, true},
    {"ne", IsNotEqual, true},
    {"!=", IsNotEqual, true},
    {"lt", IsLess, true},
    {"lessthan", IsLess, true},
    {"<", IsLess, true},
    {"gt", IsGreater, true},
    {"greaterthan", IsGreater, true},
    {">", IsGreater, true},
    {"le", IsLessOrEqual, true},
    {"<=", IsLessOrEqual, true},
    {"ge", IsGreaterOrEqual, true},
    {">=", IsGreaterOrEqual, true},
    {"in", IsIn, true},
    {"filter", IsFilter},
    {"test", IsTest},
};

const Test* FindTest(absl::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [name](const Test& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

absl::Status CheckTestName(absl::string_view name) {
  return FindTest(name) != nullptr
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("there is no test named '", name, "'"));
}

absl::StatusOr<bool> CallTest(Interpreter& interpreter, absl::string_view name, const Value& value,
                              Arguments arguments) {
  const Test* test = FindTest(name);
  if (test == nullptr) {
    return CheckTestName(name);
  }
  LAMINA_RETURN_IF_ERROR(SpendArguments(interpreter.budget(), arguments));
  static constexpr absl::string_view kOther[] = {"other"};
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> given,
                          Bind(name, arguments, absl::MakeSpan(kOther, test->takes_one ? 1 : 0),
                               test->takes_one ? 1 : 0));
  return test->call({interpreter, value, given});
}

}  // namespace lamina::jinja
