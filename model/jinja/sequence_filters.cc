// SPDX-License-Identifier: Apache-2.0
//
// Filters over lists and dicts.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "model/jinja/filters_internal.h"
#include "model/jinja/text.h"

namespace lamina::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// The value at a path of attributes, "a.b.0"; the value itself for none.
Result AtPath(Budget& budget, const Value& value, const Value& path, const Value& fallback) {
  if (path.is_none() || path.is_undefined()) {
    return value;
  }
  std::vector<Value> parts = {path};
  if (const std::string* text = path.string()) {
    parts.clear();
    for (const absl::string_view part : absl::StrSplit(*text, '.')) {
      int64_t index = 0;
      parts.push_back(absl::SimpleAtoi(part, &index) ? Value::Int(index)
                                                     : Value::String(std::string(part)));
    }
  }
  Value out = value;
  for (const Value& part : parts) {
    LAMINA_ASSIGN_OR_RETURN(out, GetItem(budget, out, part));
    if (out.is_undefined() && !fallback.is_undefined() && !fallback.is_none()) {
      out = fallback;
    }
  }
  return out;
}

Value FoldCase(const Value& value, bool case_sensitive) {
  return case_sensitive || value.string() == nullptr ? value
                                                     : Value::String(ToLower(*value.string()));
}

Result Length(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  size_t length = 0;
  if (const std::string* text = call.value.string()) {
    LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(text->size()));
    length = CountCharacters(*text);
  } else if (const Mapping* mapping = call.value.mapping()) {
    length = mapping->entries.size();
  } else if (const Sequence* sequence = call.value.sequence();
             sequence != nullptr && sequence->kind != SequenceKind::kIterator) {
    length = sequence->items.size();
  } else if (!call.value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", call.value.type_name(), " has no length"));
  }
  return Value::Int(static_cast<int64_t>(length));
}

Result ToList(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.budget(), call.value));
  return Value::List(std::move(items));
}

Result First(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  return items.empty() ? Value::Undefined("No first item, sequence was empty.") : items.front();
}

Result Last(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  if (call.value.sequence() != nullptr && call.value.sequence()->kind == SequenceKind::kIterator) {
    return absl::InvalidArgumentError("an iterator has no last item; use |list first");
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  return items.empty() ? Value::Undefined("No last item, sequence was empty.") : items.back();
}

Result Reverse(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  LAMINA_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.budget(), call.value));
  std::reverse(items.begin(), items.end());
  if (call.value.string() != nullptr) {
    std::string out;
    for (const Value& item : items) {
      out += *item.string();
    }
    return Value::String(std::move(out));
  }
  return Value::List(std::move(items), SequenceKind::kIterator);
}

Result Join(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"d", "attribute"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::string separator, Str(call.budget(), given[0]));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(const Value item, AtPath(call.budget(), items[i], given[1], Value()));
    LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget(), item));
    LAMINA_RETURN_IF_ERROR(call.budget().SpendBytes(separator.size()));
    absl::StrAppend(&out, i == 0 ? "" : separator, text);
  }
  return Value::String(std::move(out));
}

Result Items(const FilterCall& call) {
  LAMINA_RETURN_IF_ERROR(call.Take({}, 0).status());
  std::vector<Value> out;
  if (const Mapping* mapping = call.value.mapping()) {
    LAMINA_RETURN_IF_ERROR(call.budget().Spend(1 + mapping->entries.size()));
    for (const auto& [key, value] : mapping->entries) {
      LAMINA_ASSIGN_OR_RETURN(Value pair, Value::List({key, value}, SequenceKind::kTuple));
      out.push_back(std::move(pair));
    }
  } else if (!call.value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'items' needs a dict, not ", call.value.type_name()));
  }
  return Value::List(std::move(out), SequenceKind::kIterator);
}

Result Map(const FilterCall& call) {
  std::vector<Value> out;
  if (!call.arguments.positional.empty()) {
    LAMINA_ASSIGN_OR_RETURN(const std::string name,
                            StringOr(call.name, call.arguments.positional[0], ""));
    call.arguments.positional.erase(call.arguments.positional.begin());
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
    for (const Value& item : items) {
      LAMINA_ASSIGN_OR_RETURN(Value value,
                              CallFilter(call.interpreter, name, item, call.arguments));
      out.push_back(std::move(value));
    }
    return Value::List(std::move(out), SequenceKind::kIterator);
  }
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"attribute", "default"}, 0));
  if (given[0].is_undefined()) {
    return absl::InvalidArgumentError("'map' needs a filter or an attribute");
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  for (const Value& item : items) {
    LAMINA_ASSIGN_OR_RETURN(Value value, AtPath(call.budget(), item, given[0], given[1]));
    out.push_back(std::move(value));
  }
  return Value::List(std::move(out), SequenceKind::kIterator);
}

// select, reject, selectattr, rejectattr.
Result Select(const FilterCall& call) {
  const bool wanted = call.name[0] == 's';
  const bool by_attribute = call.name == "selectattr" || call.name == "rejectattr";
  std::vector<Value>& positional = call.arguments.positional;
  Value path;
  if (by_attribute) {
    if (positional.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", call.name, "' needs the name of an attribute"));
    }
    path = positional[0];
    positional.erase(positional.begin());
  }
  std::string test;
  if (!positional.empty()) {
    LAMINA_ASSIGN_OR_RETURN(test, StringOr(call.name, positional[0], ""));
    positional.erase(positional.begin());
  }
  std::vector<Value> items;
  if (call.value.truthy()) {  // Jinja looks no further at what is false, as none.
    LAMINA_ASSIGN_OR_RETURN(items, Iterate(call.budget(), call.value));
  }
  std::vector<Value> out;
  for (const Value& item : items) {
    LAMINA_ASSIGN_OR_RETURN(const Value value, AtPath(call.budget(), item, path, Value()));
    bool holds = value.truthy();
    if (!test.empty()) {
      LAMINA_ASSIGN_OR_RETURN(holds, CallTest(call.interpreter, test, value, call.arguments));
    }
    if (holds == wanted) {
      out.push_back(item);
    }
  }
  return Value::List(std::move(out), SequenceKind::kIterator);
}

// Sorts items by their keys, which are as many; keeps the order of equal ones.
absl::StatusOr<std::vector<Value>> SortBy(Budget& budget, std::vector<Value> items,
                                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  absl::Status failure;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!failure.ok()) {
      return false;
    }
    const absl::StatusOr<bool> less =
        reverse ? Less(budget, keys[b], keys[a]) : Less(budget, keys[a], keys[b]);
    failure.Update(less.status());
    return less.ok() && *less;
  });
  LAMINA_RETURN_IF_ERROR(failure);
  std::vector<Value> out;
  for (const size_t place : order) {
    out.push_back(std::move(items[place]));
  }
  return out;
}

Result Sort(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given,
                          call.Take({"reverse", "case_sensitive", "attribute"}, 0));
  std::vector<Value> paths = {given[2]};
  if (const std::string* text = given[2].string()) {
    paths.clear();
    for (const absl::string_view path : absl::StrSplit(*text, ',')) {
      paths.push_back(Value::String(std::string(path)));
    }
  }
  LAMINA_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.budget(), call.value));
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const Value& path : paths) {
      LAMINA_ASSIGN_OR_RETURN(const Value part, AtPath(call.budget(), item, path, Value()));
      parts.push_back(FoldCase(part, BoolOr(given[1], false)));
    }
    LAMINA_ASSIGN_OR_RETURN(Value key, Value::List(std::move(parts)));
    keys.push_back(std::move(key));
  }
  LAMINA_ASSIGN_OR_RETURN(items,
                          SortBy(call.budget(), std::move(items), keys, BoolOr(given[0], false)));
  return Value::List(std::move(items));
}

Result DictSort(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"case_sensitive", "by", "reverse"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::string by, StringOr(call.name, given[1], "key"));
  if (call.value.mapping() == nullptr || (by != "key" && by != "value")) {
    return absl::InvalidArgumentError("'dictsort' sorts a dict, by key or by value");
  }
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : call.value.mapping()->entries) {
    LAMINA_ASSIGN_OR_RETURN(Value pair, Value::List({key, value}, SequenceKind::kTuple));
    items.push_back(std::move(pair));
    keys.push_back(FoldCase(by == "key" ? key : value, BoolOr(given[0], false)));
  }
  LAMINA_ASSIGN_OR_RETURN(items,
                          SortBy(call.budget(), std::move(items), keys, BoolOr(given[2], false)));
  return Value::List(std::move(items));
}

Result Unique(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"case_sensitive", "attribute"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  std::vector<Value> out;
  std::vector<Value> keys;
  for (const Value& item : items) {
    LAMINA_ASSIGN_OR_RETURN(Value key, AtPath(call.budget(), item, given[1], Value()));
    key = FoldCase(key, BoolOr(given[0], false));
    bool known = false;
    for (size_t i = 0; i < keys.size() && !known; ++i) {
      LAMINA_ASSIGN_OR_RETURN(known, Equal(call.budget(), keys[i], key));
    }
    if (!known) {
      keys.push_back(std::move(key));
      out.push_back(item);
    }
  }
  return Value::List(std::move(out), SequenceKind::kIterator);
}

// min and max.
Result Extreme(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"case_sensitive", "attribute"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  if (items.empty()) {
    return Value::Undefined("No aggregated item, sequence was empty.");
  }
  Value best;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(Value key, AtPath(call.budget(), items[i], given[1], Value()));
    key = FoldCase(key, BoolOr(given[0], false));
    bool better = i == 0;
    if (!better) {
      LAMINA_ASSIGN_OR_RETURN(better, call.name == "min" ? Less(call.budget(), key, best_key)
                                                         : Less(call.budget(), best_key, key));
    }
    if (better) {
      best = items[i];
      best_key = std::move(key);
    }
  }
  return best;
}

Result Sum(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"attribute", "start"}, 0));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  Value out = given[1].is_undefined() ? Value::Int(0) : given[1];
  for (const Value& item : items) {
    LAMINA_ASSIGN_OR_RETURN(const Value part, AtPath(call.budget(), item, given[0], Value()));
    LAMINA_ASSIGN_OR_RETURN(out, Arithmetic(call.budget(), "+", out, part));
  }
  return out;
}

Result Batch(const FilterCall& call) {
  LAMINA_ASSIGN_OR_RETURN(const auto given, call.Take({"linecount", "fill_with"}, 1));
  LAMINA_ASSIGN_OR_RETURN(const int64_t size, IntOr(call.name, given[0], 0));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.budget(), call.value));
  if (size < 1 || size > kRangeMax) {
    return absl::InvalidArgumentError(absl::StrCat("'batch' of ", size, " items"));
  }
  std::vector<Value> out;
  for (size_t i = 0; i < items.size(); i += static_cast<size_t>(size)) {
    const size_t end = std::min(items.size(), i + static_cast<size_t>(size));
    std::vector<Value> row(items.begin() + static_cast<ptrdiff_t>(i),
                           items.begin() + static_cast<ptrdiff_t>(end));
    if (!given[1].is_undefined() && !given[1].is_none()) {
      LAMINA_RETURN_IF_ERROR(call.budget().Spend(static_cast<uint64_t>(size)));
      row.resize(static_cast<size_t>(size), given[1]);
    }
    LAMINA_ASSIGN_OR_RETURN(Value list, Value::List(std::move(row)));
    out.push_back(std::move(list));
  }
  return Value::List(std::move(out), SequenceKind::kIterator);
}

constexpr Filter kSequenceFilters[] = {
    {"batch", Batch},       {"count", Length},      {"dictsort", DictSort}, {"first", First},
    {"items", Items},       {"join", Join},         {"last", Last},         {"length", Length},
    {"list", ToList},       {"map", Map},           {"max", Extreme},       {"min", Extreme},
    {"reject", Select},     {"rejectattr", Select}, {"reverse", Reverse},   {"select", Select},
    {"selectattr", Select}, {"sort", Sort},         {"sum", Sum},           {"unique", Unique},
};

}  // namespace

absl::Span<const Filter> SequenceFilters() { return kSequenceFilters; }

}  // namespace lamina::jinja
