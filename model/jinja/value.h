// SPDX-License-Identifier: Apache-2.0
//
// Value: what a Jinja expression has as its result. The kinds and their behaviour are Python's.
//
// All are immutable but namespaces, iterators and the state of a loop, so copies share. Those that
// hold others know how deep they are, so that no recursion over them is deeper than kNestingMax; to
// let the last reference go is one. What namespaces hold, and the arguments of loop.changed(), is
// not counted, as it changes and may be the holder itself: the interpreter keeps these to the end,
// and empties them then.
// Text is valid UTF-8, counted in characters (code points).
//
// Threading: a value belongs to one rendering.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::jinja {

class Interpreter;
class Value;
struct Loop;

struct Missing {
  std::shared_ptr<const std::string> what;  // "'x' is undefined", for errors.
};
struct NoneType {};

struct Text {
  std::string bytes;
  // Came from the filter `safe` or `escape`: other text that is added to it is escaped.
  bool markup = false;
};

enum class SequenceKind : uint8_t {
  kList,
  kTuple,
  kRange,     // What range() gives.
  kView,      // dict.items() and the like: has a length, but no index.
  kIterator,  // What map, select and the like give: always true, has no length, gives out once.
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int depth = 1;
  mutable bool consumed = false;  // An iterator has given out its items.
};

struct Mapping {
  std::vector<std::pair<Value, Value>> entries;  // In the order they were put.
  int depth = 1;
  // Null when there is none. `key` is compared as Python does: 1, 1.0 and true are one key.
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  Value* Find(absl::string_view name);
};

// What a call passes.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  std::function<absl::StatusOr<Value>(Interpreter&, Arguments&)> call;
  bool is_macro = false;
  int depth = 0;  // Depth of what it holds, as a method holds its value.
};

class Value {
 public:
  using Data = std::variant<Missing, NoneType, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Mapping>,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
                            std::shared_ptr<Loop>>;

  Value() : data_(NoneType{}) {}
  explicit Value(Data data) : data_(std::move(data)) {}

  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Int(int64_t value) { return Value(Data(value)); }
  static Value Float(double value) { return Value(Data(value)); }
  static Value String(std::string bytes, bool markup = false);
  static Value Undefined(std::string what);
  // Errors: kInvalidArgument  deeper than kNestingMax.
  static absl::StatusOr<Value> List(std::vector<Value> items,
                                    SequenceKind kind = SequenceKind::kList);
  // Later entries replace earlier ones with the same key, which keeps its place.
  // Errors: kInvalidArgument  deeper than kNestingMax, or a key that cannot be one.
  static absl::StatusOr<Value> Dict(std::vector<std::pair<Value, Value>> entries);
  // `depth`: of what the function holds.
  static Value Function(std::string name,
                        std::function<absl::StatusOr<Value>(Interpreter&, Arguments&)> call,
                        int depth = 0);

  bool is_undefined() const { return std::holds_alternative<Missing>(data_); }
  bool is_none() const { return std::holds_alternative<NoneType>(data_); }
  const Missing& undefined() const { return std::get<Missing>(data_); }
  // Null when it is of another kind.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* floating() const { return std::get_if<double>(&data_); }
  const std::string* string() const;
  const Sequence* sequence() const { return Pointer<const Sequence>(); }
  const Mapping* mapping() const { return Pointer<const Mapping>(); }
  Namespace* name_space() const { return Pointer<Namespace>(); }
  const Callable* callable() const { return Pointer<const Callable>(); }
  Loop* loop() const { return Pointer<Loop>(); }
  bool is_markup() const;
  bool is_number() const { return boolean() || integer() || floating(); }
  // An integer or a boolean as Python's int(); `*out` untouched when neither.
  bool AsInt(int64_t* out) const;

  // Python's type name, as its own messages say it: "dict", "str", "NoneType".
  absl::string_view type_name() const;
  bool truthy() const;
  int depth() const;

  const Data& data() const { return data_; }

 private:
  template <typename T>
  T* Pointer() const {
    const auto* held = std::get_if<std::shared_ptr<T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }

  Data data_;
};

// The state of a running `for`: what the variable `loop` shows. Holds the items by value, so it
// may outlive the loop.
struct Loop {
  std::vector<Value> items;
  int depth = 1;  // One more than that of the items.
  size_t index0 = 0;
  int depth0 = 0;
  std::vector<Value> changed;  // Arguments of the last loop.changed().
  bool changed_called = false;
};

// What holds `items` is so deep.
int DepthOver(const std::vector<Value>& items);
// Errors: kInvalidArgument  deeper than kNestingMax.
absl::Status CheckDepth(int depth);

// Python's ==, for the kinds that a dictionary may have as a key.
bool SameKey(const Value& a, const Value& b);

}  // namespace lamina::jinja
