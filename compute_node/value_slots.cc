// SPDX-License-Identifier: Apache-2.0
#include "compute_node/value_slots.h"

#include <algorithm>
#include <utility>

namespace lamina::compute_node {
namespace {

// Gives slots out and takes them back.
class SlotPool {
 public:
  explicit SlotPool(size_t values) { slots_.slot.assign(values, model::kNone); }

  void Take(model::ValueId value, size_t row_bytes, SlotRows rows) {
    const auto match = std::find_if(free_.begin(), free_.end(), [&](const uint32_t slot) {
      return slots_.row_bytes[slot] == row_bytes && slots_.rows[slot] == rows;
    });
    if (match != free_.end()) {
      slots_.slot[value] = *match;
      free_.erase(match);
      return;
    }
    slots_.slot[value] = static_cast<uint32_t>(slots_.row_bytes.size());
    slots_.row_bytes.push_back(row_bytes);
    slots_.rows.push_back(rows);
  }
  void GiveBack(model::ValueId value) { free_.push_back(slots_.slot[value]); }

  ValueSlots Finish() && { return std::move(slots_); }

 private:
  ValueSlots slots_;
  std::vector<uint32_t> free_;  // In the order in which they became free.
};

// What the use reads, each once.
std::vector<model::ValueId> ReadBy(const model::Graph& graph, const ValueUse& use) {
  std::vector<model::ValueId> read;
  if (use.reads) {
    read = graph.ops[use.op].inputs;
  }
  if (use.also_read != model::kNone) {
    read.push_back(use.also_read);
  }
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  return read;
}

// [values]: the last use that reads each.
std::vector<size_t> LastReaders(const model::Graph& graph, const ValueLives& lives) {
  std::vector<size_t> last(graph.values.size(), 0);
  for (size_t i = 0; i < lives.uses.size(); ++i) {
    for (const model::ValueId value : ReadBy(graph, lives.uses[i])) {
      last[value] = i;
    }
  }
  for (const model::ValueId value : lives.kept) {
    last[value] = lives.uses.size();
  }
  return last;
}

}  // namespace

ValueSlots AssignSlots(const model::Graph& graph, const ValueLives& lives) {
  const std::vector<size_t> last = LastReaders(graph, lives);
  SlotPool pool(graph.values.size());
  const auto take = [&](model::ValueId value) {
    if (lives.row_bytes[value] > 0) {
      pool.Take(value, lives.row_bytes[value],
                lives.rows.empty() ? SlotRows::kStep : lives.rows[value]);
    }
  };
  std::for_each(lives.inputs.begin(), lives.inputs.end(), take);
  for (size_t i = 0; i < lives.uses.size(); ++i) {
    const ValueUse& use = lives.uses[i];
    if (use.makes) {
      take(graph.ops[use.op].output);
    }
    for (const model::ValueId value : ReadBy(graph, use)) {
      if (last[value] == i && lives.row_bytes[value] > 0) {
        pool.GiveBack(value);
      }
    }
  }
  return std::move(pool).Finish();
}

}  // namespace lamina::compute_node
