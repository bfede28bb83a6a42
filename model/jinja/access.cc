// SPDX-License-Identifier: Apache-2.0
//
// What is inside values: attributes, items, slices, and what iterating gives.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"
#include "model/jinja/text.h"

namespace lamina::jinja {
namespace {

absl::Status Undefinedness(const Value& value) {
  return absl::InvalidArgumentError(*value.undefined().what);
}

bool IsIndexable(const Sequence& sequence) {
  return sequence.kind == SequenceKind::kList || sequence.kind == SequenceKind::kTuple ||
         sequence.kind == SequenceKind::kRange;
}

absl::StatusOr<Value> LoopAttribute(const Value& value, absl::string_view name) {
  Loop& loop = *value.loop();
  const auto index = static_cast<int64_t>(loop.index0);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index") {
    return Value::Int(index + 1);
  }
  if (name == "index0") {
    return Value::Int(index);
  }
  if (name == "first") {
    return Value::Bool(index == 0);
  }
  if (name == "last") {
    return Value::Bool(index + 1 == length);
  }
  if (name == "length") {
    return Value::Int(length);
  }
  if (name == "revindex") {
    return Value::Int(length - index);
  }
  if (name == "revindex0") {
    return Value::Int(length - index - 1);
  }
  if (name == "depth") {
    return Value::Int(loop.depth0 + 1);
  }
  if (name == "depth0") {
    return Value::Int(loop.depth0);
  }
  if (name == "previtem") {
    return index == 0 ? Value::Undefined("there is no previous item") : loop.items[loop.index0 - 1];
  }
  if (name == "nextitem") {
    return index + 1 == length ? Value::Undefined("there is no next item")
                               : loop.items[loop.index0 + 1];
  }
  return FindMethod(value, name);
}

Value NoAttribute(const Value& value, absl::string_view name) {
  return Value::Undefined(absl::StrCat("'", value.type_name(), "' has no attribute '", name, "'"));
}

// The attribute without the items. Undefined when there is none.
absl::StatusOr<Value> PlainAttribute(const Value& value, absl::string_view name) {
  if (absl::StartsWith(name, "__")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the attribute '", name, "' is not for templates"));
  }
  if (Namespace* space = value.name_space()) {
    const Value* found = space->Find(name);
    return found == nullptr ? NoAttribute(value, name) : *found;
  }
  if (value.loop() != nullptr) {
    return LoopAttribute(value, name);
  }
  return FindMethod(value, name);
}

// A position in a sequence of `size`, negative ones from the end; false when outside.
bool Place(const Value& key, size_t size, size_t* place) {
  int64_t index = 0;
  if (!key.AsInt(&index)) {
    return false;
  }
  if (index < 0) {
    index += static_cast<int64_t>(size);
  }
  if (index < 0 || index >= static_cast<int64_t>(size)) {
    return false;
  }
  *place = static_cast<size_t>(index);
  return true;
}

// Start, stop and step as Python's slice.indices() gives them.
struct SliceRange {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

absl::StatusOr<SliceRange> Indices(const Value& start, const Value& stop, const Value& step,
                                   int64_t size) {
  SliceRange out;
  if (!step.is_none() && !step.AsInt(&out.step)) {
    return absl::InvalidArgumentError("the step of a slice is not a whole number");
  }
  if (out.step == 0) {
    return absl::InvalidArgumentError("the step of a slice is zero");
  }
  out.step = std::clamp<int64_t>(out.step, -(size + 1), size + 1);
  const int64_t low = out.step < 0 ? -1 : 0;
  const int64_t high = out.step < 0 ? size - 1 : size;
  const auto bound = [&](const Value& value, int64_t fallback, int64_t* place) {
    int64_t at = 0;
    if (value.is_none()) {
      *place = fallback;
      return true;
    }
    if (!value.AsInt(&at)) {
      return false;
    }
    *place = std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, low, high);
    return true;
  };
  if (!bound(start, out.step < 0 ? high : low, &out.start) ||
      !bound(stop, out.step < 0 ? low : high, &out.stop)) {
    return absl::InvalidArgumentError("a bound of a slice is not a whole number");
  }
  return out;
}

template <typename Take>
void ForIndices(const SliceRange& range, const Take& take) {
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    take(static_cast<size_t>(i));
  }
}

}  // namespace
absl::StatusOr<Value> GetAttribute(const Value& value, absl::string_view name) {
  if (value.is_undefined()) {
    return Undefinedness(value);
  }
  LAMINA_ASSIGN_OR_RETURN(Value found, PlainAttribute(value, name));
  if (!found.is_undefined()) {
    return found;
  }
  if (const Mapping* mapping = value.mapping()) {
    if (const Value* item = mapping->Find(name)) {
      return *item;
    }
  }
  return NoAttribute(value, name);
}

absl::StatusOr<Value> GetItem(Budget& budget, const Value& value, const Value& key) {
  if (value.is_undefined()) {
    return Undefinedness(value);
  }
  size_t place = 0;
  // A key that is not found is copied into the message that says so.
  LAMINA_RETURN_IF_ERROR(budget.SpendBytes(key.string() == nullptr ? 0 : key.string()->size()));
  if (const Namespace* space = value.name_space()) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(space->attributes.size() / 8));
  }
  if (const Mapping* mapping = value.mapping()) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(1 + mapping->entries.size() / 4));
    if (const Value* found = mapping->Find(key)) {
      return *found;
    }
  } else if (const Sequence* sequence = value.sequence()) {
    if (IsIndexable(*sequence) && Place(key, sequence->items.size(), &place)) {
      return sequence->items[place];
    }
  } else if (const std::string* text = value.string()) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(text->size()));
    if (Place(key, CountCharacters(*text), &place)) {
      const size_t begin = ByteOffset(*text, place);
      return Value::String(
          text->substr(begin, ByteOffset(absl::string_view(*text).substr(begin), 1)));
    }
  }
  if (key.string() != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(Value found, PlainAttribute(value, *key.string()));
    return found.is_undefined() ? NoAttribute(value, *key.string()) : found;
  }
  return Value::Undefined(absl::StrCat("'", value.type_name(), "' has no such element"));
}

absl::StatusOr<Value> GetSlice(Budget& budget, const Value& value, const Value& start,
                               const Value& stop, const Value& step) {
  if (const std::string* text = value.string()) {
    LAMINA_RETURN_IF_ERROR(budget.SpendBytes(4 * text->size()));
    const std::vector<std::string> characters = SplitCharacters(*text);
    LAMINA_ASSIGN_OR_RETURN(const SliceRange range,
                            Indices(start, stop, step, static_cast<int64_t>(characters.size())));
    std::string out;
    ForIndices(range, [&](size_t i) { out += characters[i]; });
    return Value::String(std::move(out));
  }
  const Sequence* sequence = value.sequence();
  if (sequence == nullptr || !IsIndexable(*sequence)) {
    return value.is_undefined() ? Undefinedness(value)
                                : absl::InvalidArgumentError(absl::StrCat(
                                      "a value of type ", value.type_name(), " has no slices"));
  }
  LAMINA_ASSIGN_OR_RETURN(const SliceRange range,
                          Indices(start, stop, step, static_cast<int64_t>(sequence->items.size())));
  LAMINA_RETURN_IF_ERROR(budget.Spend(sequence->items.size()));
  std::vector<Value> out;
  ForIndices(range, [&](size_t i) { out.push_back(sequence->items[i]); });
  return Value::List(std::move(out), sequence->kind);
}

absl::StatusOr<std::vector<Value>> Iterate(Budget& budget, const Value& value) {
  if (const Sequence* sequence = value.sequence()) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(1 + sequence->items.size()));
    if (sequence->kind == SequenceKind::kIterator && std::exchange(sequence->consumed, true)) {
      return std::vector<Value>();
    }
    return sequence->items;
  }
  std::vector<Value> out;
  if (const Mapping* mapping = value.mapping()) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(1 + mapping->entries.size()));
    for (const auto& [key, entry] : mapping->entries) {
      out.push_back(key);
    }
    return out;
  }
  if (const std::string* text = value.string()) {
    LAMINA_RETURN_IF_ERROR(budget.Spend(1 + text->size()));
    for (std::string& character : SplitCharacters(*text)) {
      out.push_back(Value::String(std::move(character)));
    }
    return out;
  }
  if (value.is_undefined()) {
    return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.type_name(), " cannot be iterated over"));
}

}  // namespace lamina::jinja
