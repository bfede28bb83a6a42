// SPDX-License-Identifier: Apache-2.0
//
// The functions that every template sees.
#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"
#include "model/tokenizer/utf8.h"

namespace lamina::jinja {
namespace {

constexpr size_t kTimeFormatBytesMax = 256;

absl::StatusOr<Value> Range(Interpreter& interpreter, Arguments& arguments) {
  if (!arguments.named.empty() || arguments.positional.empty()) {
    return absl::InvalidArgumentError("'range' needs 1 to 3 positional arguments");
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> given,
                          Bind("range", arguments, {"start", "stop", "step"}, 1));
  LAMINA_ASSIGN_OR_RETURN(int64_t start, IntOr("range", given[0], 0));
  LAMINA_ASSIGN_OR_RETURN(int64_t stop, IntOr("range", given[1], 0));
  LAMINA_ASSIGN_OR_RETURN(const int64_t step, IntOr("range", given[2], 1));
  if (given[1].is_undefined()) {
    stop = std::exchange(start, 0);
  }
  if (step == 0) {
    return absl::InvalidArgumentError("the step of 'range' is zero");
  }
  std::vector<Value> out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(out.size()) == kRangeMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("'range' is longer than ", kRangeMax, ", the most that is allowed"));
    }
    out.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  LAMINA_RETURN_IF_ERROR(interpreter.budget().Spend(out.size()));
  return Value::List(std::move(out), SequenceKind::kRange);
}

// The entries that dict(x, a=1) and namespace(x, a=1) begin with.
absl::StatusOr<std::vector<std::pair<Value, Value>>> Entries(Interpreter& interpreter,
                                                             absl::string_view what,
                                                             Arguments& arguments) {
  if (arguments.positional.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", what, "' takes at most 1 positional argument"));
  }
  std::vector<std::pair<Value, Value>> out;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.mapping() != nullptr) {
      LAMINA_RETURN_IF_ERROR(interpreter.budget().Spend(source.mapping()->entries.size()));
      out = source.mapping()->entries;
    } else {
      LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> pairs,
                              Iterate(interpreter.budget(), source));
      for (const Value& pair : pairs) {
        LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> parts,
                                Iterate(interpreter.budget(), pair));
        if (parts.size() != 2) {
          return absl::InvalidArgumentError(absl::StrCat("'", what, "' needs pairs"));
        }
        out.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) {
    out.emplace_back(Value::String(name), std::move(value));
  }
  return out;
}

absl::StatusOr<Value> Dict(Interpreter& interpreter, Arguments& arguments) {
  LAMINA_ASSIGN_OR_RETURN(auto entries, Entries(interpreter, "dict", arguments));
  return Value::Dict(std::move(entries));
}

absl::StatusOr<Value> MakeNamespace(Interpreter& interpreter, Arguments& arguments) {
  LAMINA_ASSIGN_OR_RETURN(auto entries, Entries(interpreter, "namespace", arguments));
  std::shared_ptr<Namespace> space = interpreter.NewNamespace();
  for (auto& [key, value] : entries) {
    const std::string* name = key.string();
    if (name == nullptr || absl::StartsWith(*name, "_")) {
      return absl::InvalidArgumentError(
          "the names of a namespace are texts that do not begin with an underscore");
    }
    LAMINA_RETURN_IF_ERROR(interpreter.budget().Spend(1 + space->attributes.size() / 8));
    if (Value* found = space->Find(*name)) {
      *found = std::move(value);
    } else {
      space->attributes.emplace_back(*name, std::move(value));
    }
  }
  return Value(Value::Data(std::move(space)));
}

absl::StatusOr<Value> RaiseException(Interpreter& interpreter, Arguments& arguments) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> given,
                          Bind("raise_exception", arguments, {"message"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::string message, Str(interpreter.budget(), given[0]));
  return absl::InvalidArgumentError(
      absl::StrCat("the model's chat template refuses the conversation: ", message));
}

absl::StatusOr<Value> StrftimeNow(Interpreter& interpreter, Arguments& arguments) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> given,
                          Bind("strftime_now", arguments, {"format"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const std::string format, StringOr("strftime_now", given[0], ""));
  if (format.size() > kTimeFormatBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the format of 'strftime_now' has ",
                                                   format.size(), " bytes; at most ",
                                                   kTimeFormatBytesMax));
  }
  // A byte more, so that an empty result can be told from one that does not fit.
  std::string out(16 * kTimeFormatBytesMax, '\0');
  const size_t length =
      std::strftime(out.data(), out.size(), absl::StrCat(format, "x").c_str(), &interpreter.now());
  out.resize(length == 0 ? 0 : length - 1);
  LAMINA_RETURN_IF_ERROR(interpreter.budget().SpendBytes(out.size()));
  return Value::String(model::ToValidUtf8(out));
}

// joiner(', '): nothing the first time, then the separator.
absl::StatusOr<Value> Joiner(Interpreter&, Arguments& arguments) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> given, Bind("joiner", arguments, {"sep"}, 0));
  LAMINA_ASSIGN_OR_RETURN(std::string separator, StringOr("joiner", given[0], ", "));
  return Value::Function(
      "joiner",
      [separator = std::move(separator), used = std::make_shared<bool>(false)](
          Interpreter& interpreter, Arguments& none) -> absl::StatusOr<Value> {
        LAMINA_RETURN_IF_ERROR(Bind("joiner", none, {}, 0).status());
        LAMINA_RETURN_IF_ERROR(interpreter.budget().SpendBytes(separator.size()));
        return Value::String(std::exchange(*used, true) ? separator : "");
      });
}

struct Global {
  absl::string_view name;
  absl::StatusOr<Value> (*call)(Interpreter&, Arguments&);  // Null: Jinja's, but not ours.
};

constexpr Global kGlobals[] = {
    {"range", Range},
    {"dict", Dict},
    {"namespace", MakeNamespace},
    {"joiner", Joiner},
    {"raise_exception", RaiseException},
    {"strftime_now", StrftimeNow},
    {"cycler", nullptr},
    {"lipsum", nullptr},
};

}  // namespace

absl::StatusOr<Value> FindGlobal(absl::string_view name) {
  const auto* found = std::find_if(std::begin(kGlobals), std::end(kGlobals),
                                   [name](const Global& global) { return global.name == name; });
  if (found == std::end(kGlobals)) {
    return Value::Undefined(absl::StrCat("'", name, "' is undefined"));
  }
  if (found->call == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the function '", name, "' is not supported"));
  }
  return Value::Function(std::string(name), found->call);
}

}  // namespace lamina::jinja
