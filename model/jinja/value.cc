// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "model/jinja/limits.h"

namespace lamina::jinja {
namespace {

// Below this, comparing all beats hashing.
constexpr size_t kScanMax = 16;

bool CanBeKey(const Value& value) {
  return value.is_none() || value.is_number() || value.string() != nullptr;
}

// Gives one text to keys that are one key in Python, such as 1, 1.0 and true.
std::string KeyText(const Value& key) {
  constexpr double kWholeEnd = 9.2e18;
  int64_t whole = 0;
  if (const std::string* text = key.string()) {
    return absl::StrCat("s", *text);
  }
  if (key.AsInt(&whole)) {
    return absl::StrCat("i", whole);
  }
  if (key.is_none()) {
    return "n";
  }
  const double real = *key.floating();
  return std::abs(real) < kWholeEnd && real == std::floor(real)
             ? absl::StrCat("i", static_cast<int64_t>(real))
             : absl::StrCat("f", std::bit_cast<uint64_t>(real));
}

double AsDouble(const Value& value) {
  int64_t whole = 0;
  return value.AsInt(&whole) ? static_cast<double>(whole) : *value.floating();
}

}  // namespace

bool SameKey(const Value& a, const Value& b) {
  if (const std::string* text = a.string()) {
    return b.string() != nullptr && *text == *b.string();
  }
  if (a.is_number() && b.is_number()) {
    int64_t left = 0;
    int64_t right = 0;
    if (a.AsInt(&left) && b.AsInt(&right)) {
      return left == right;
    }
    return AsDouble(a) == AsDouble(b);
  }
  return a.is_none() && b.is_none();
}

const Value* Mapping::Find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (SameKey(name, key)) {
      return &value;
    }
  }
  return nullptr;
}

const Value* Mapping::Find(absl::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.string() != nullptr && *name.string() == key) {
      return &value;
    }
  }
  return nullptr;
}

Value* Namespace::Find(absl::string_view name) {
  for (auto& [known, value] : attributes) {
    if (known == name) {
      return &value;
    }
  }
  return nullptr;
}

Value Value::String(std::string bytes, bool markup) {
  return Value(
      Data(std::make_shared<const Text>(Text{.bytes = std::move(bytes), .markup = markup})));
}

Value Value::Undefined(std::string what) {
  return Value(Data(Missing{.what = std::make_shared<const std::string>(std::move(what))}));
}

absl::Status CheckDepth(int depth) {
  if (depth > kNestingMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list or dict is nested deeper than ", kNestingMax));
  }
  return absl::OkStatus();
}

int DepthOver(const std::vector<Value>& items) {
  int depth = 1;
  for (const Value& item : items) {
    depth = std::max(depth, 1 + item.depth());
  }
  return depth;
}

absl::StatusOr<Value> Value::List(std::vector<Value> items, SequenceKind kind) {
  const int depth = DepthOver(items);
  if (absl::Status status = CheckDepth(depth); !status.ok()) {
    return status;
  }
  return Value(Data(std::make_shared<const Sequence>(
      Sequence{.kind = kind, .items = std::move(items), .depth = depth})));
}

absl::StatusOr<Value> Value::Dict(std::vector<std::pair<Value, Value>> entries) {
  auto out = std::make_shared<Mapping>();
  absl::flat_hash_map<std::string, size_t> places;
  const bool hashed = entries.size() > kScanMax;
  for (auto& [key, value] : entries) {
    if (!CanBeKey(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a value of type ", key.type_name(), " cannot be a key of a dict"));
    }
    out->depth = std::max(out->depth, 1 + value.depth());
    Value* found = nullptr;
    if (hashed) {
      const auto [place, added] = places.try_emplace(KeyText(key), out->entries.size());
      found = added ? nullptr : &out->entries[place->second].second;
    } else {
      found = const_cast<Value*>(out->Find(key));
    }
    if (found != nullptr) {
      *found = std::move(value);
    } else {
      out->entries.emplace_back(std::move(key), std::move(value));
    }
  }
  if (absl::Status status = CheckDepth(out->depth); !status.ok()) {
    return status;
  }
  return Value(Data(std::shared_ptr<const Mapping>(std::move(out))));
}

Value Value::Function(std::string name,
                      std::function<absl::StatusOr<Value>(Interpreter&, Arguments&)> call,
                      int depth) {
  return Value(Data(std::make_shared<const Callable>(
      Callable{.name = std::move(name), .call = std::move(call), .depth = depth})));
}

const std::string* Value::string() const {
  const Text* text = Pointer<const Text>();
  return text == nullptr ? nullptr : &text->bytes;
}

bool Value::is_markup() const {
  const Text* text = Pointer<const Text>();
  return text != nullptr && text->markup;
}

bool Value::AsInt(int64_t* out) const {
  if (const int64_t* whole = integer()) {
    *out = *whole;
    return true;
  }
  if (const bool* flag = boolean()) {
    *out = *flag ? 1 : 0;
    return true;
  }
  return false;
}

absl::string_view Value::type_name() const {
  static constexpr absl::string_view kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                                 "float",     "str",      "list",       "dict",
                                                 "Namespace", "function", "LoopContext"};
  if (const Sequence* items = sequence()) {
    static constexpr absl::string_view kSequences[] = {"list", "tuple", "range", "dict view",
                                                       "iterator"};
    return kSequences[static_cast<size_t>(items->kind)];
  }
  return kNames[data_.index()];
}

bool Value::truthy() const {
  if (const bool* flag = boolean()) {
    return *flag;
  }
  if (const int64_t* whole = integer()) {
    return *whole != 0;
  }
  if (const double* real = floating()) {
    return *real != 0;
  }
  if (const std::string* text = string()) {
    return !text->empty();
  }
  if (const Sequence* items = sequence()) {
    return items->kind == SequenceKind::kIterator || !items->items.empty();
  }
  if (const Mapping* map = mapping()) {
    return !map->entries.empty();
  }
  return !is_undefined() && !is_none();
}

int Value::depth() const {
  if (const Sequence* items = sequence()) {
    return items->depth;
  }
  if (const Mapping* map = mapping()) {
    return map->depth;
  }
  if (const Callable* function = callable()) {
    return function->depth;
  }
  return loop() == nullptr ? 0 : loop()->depth;
}

}  // namespace lamina::jinja
