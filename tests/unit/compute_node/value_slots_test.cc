// SPDX-License-Identifier: Apache-2.0
//
// Slots against a plain recomputation: each use is played on a memory that knows what lies in each
// slot, and the slots are counted from the values that are alive at the same time.

#include "compute_node/value_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/philox.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kSizes[] = {8, 16, 64};

// Ops in order, each of which makes one value from some of those before.
struct Case {
  model::Graph graph;
  std::vector<ValueUse> uses;
  std::vector<model::ValueId> inputs;
  std::vector<model::ValueId> kept;
  std::vector<size_t> row_bytes;
  std::vector<SlotRows> rows;

  ValueLives lives() const {
    return {.uses = uses, .inputs = inputs, .kept = kept, .row_bytes = row_bytes, .rows = rows};
  }
};

Case RandomCase(uint64_t seed) {
  Prng random(seed);
  Case made;
  for (uint32_t value = 0; value < 40; ++value) {
    made.row_bytes.push_back(random.Below(10) == 0 ? 0 : kSizes[random.Below(3)]);
    made.rows.push_back(random.Below(3) == 0 ? SlotRows::kTile : SlotRows::kStep);
    made.graph.values.push_back({});
    if (value < 3) {
      made.inputs.push_back(value);
      continue;
    }
    model::Op op{.output = value};
    for (uint64_t i = random.Below(4); i > 0; --i) {
      // Most readers follow soon; one value may be read twice by an op.
      op.inputs.push_back(value - 1 - static_cast<uint32_t>(random.Below(std::min(value, 6u))));
    }
    made.graph.ops.push_back(op);
    const auto id = static_cast<model::OpId>(made.graph.ops.size() - 1);
    if (random.Below(5) == 0) {  // As an attention: its output is made before its input is let go.
      made.uses.push_back({.op = id, .reads = false});
      made.uses.push_back({.op = id, .makes = false});
    } else {
      made.uses.push_back({.op = id});
    }
    if (random.Below(8) == 0) {
      made.kept.push_back(value);
    }
  }
  return made;
}

// How many slots of that size have such rows.
size_t SlotsOf(const ValueSlots& slots, size_t size, SlotRows rows) {
  size_t count = 0;
  for (size_t slot = 0; slot < slots.row_bytes.size(); ++slot) {
    count += slots.row_bytes[slot] == size && slots.rows[slot] == rows;
  }
  return count;
}

// Plays the uses; a value whose slot went to another one before its last reader is found out.
void ExpectValuesStayTillTheyAreRead(const Case& played, const ValueSlots& slots) {
  std::map<uint32_t, model::ValueId> memory;
  const auto write = [&](model::ValueId value) {
    if (played.row_bytes[value] == 0) {
      EXPECT_EQ(slots.slot[value], model::kNone);
      return;
    }
    ASSERT_LT(slots.slot[value], slots.row_bytes.size());
    EXPECT_EQ(slots.row_bytes[slots.slot[value]], played.row_bytes[value]);
    EXPECT_EQ(slots.rows[slots.slot[value]], played.rows[value]);
    memory[slots.slot[value]] = value;
  };
  const auto expect_there = [&](model::ValueId value) {
    if (played.row_bytes[value] > 0) {
      EXPECT_EQ(memory[slots.slot[value]], value);
    }
  };
  std::for_each(played.inputs.begin(), played.inputs.end(), write);
  for (const ValueUse& use : played.uses) {
    const model::Op& op = played.graph.ops[use.op];
    if (use.makes) {
      write(op.output);
    }
    if (use.reads) {
      std::for_each(op.inputs.begin(), op.inputs.end(), expect_there);
    }
  }
  std::for_each(played.kept.begin(), played.kept.end(), expect_there);
}

// From where it is made to its last reader, or to the end, if it has none or is kept.
struct Life {
  size_t first = SIZE_MAX;
  size_t last = 0;
};

std::vector<Life> LivesOf(const Case& played) {
  std::vector<Life> lives(played.graph.values.size());
  for (const model::ValueId value : played.inputs) {
    lives[value].first = 0;
  }
  for (size_t i = 0; i < played.uses.size(); ++i) {
    const model::Op& op = played.graph.ops[played.uses[i].op];
    if (played.uses[i].makes) {
      lives[op.output].first = i;
    }
    for (const model::ValueId value : op.inputs) {
      if (played.uses[i].reads) {
        lives[value].last = std::max(lives[value].last, i + 1);
      }
    }
  }
  for (Life& life : lives) {
    life.last = life.last == 0 ? played.uses.size() : life.last - 1;
  }
  for (const model::ValueId value : played.kept) {
    lives[value].last = played.uses.size();
  }
  return lives;
}

// The most values of that size with such rows that are alive in one use.
size_t MostAlive(const Case& drawn, size_t size, SlotRows rows) {
  const std::vector<Life> lives = LivesOf(drawn);
  size_t most = 0;
  for (size_t i = 0; i < drawn.uses.size(); ++i) {
    size_t alive = 0;
    for (size_t value = 0; value < lives.size(); ++value) {
      alive += drawn.row_bytes[value] == size && drawn.rows[value] == rows &&
               lives[value].first <= i && i <= lives[value].last;
    }
    most = std::max(most, alive);
  }
  return most;
}

TEST(ValueSlotsTest, NoValueIsOverwrittenBeforeItsLastReader) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Case drawn = RandomCase(seed);
    ExpectValuesStayTillTheyAreRead(drawn, AssignSlots(drawn.graph, drawn.lives()));
  }
}

TEST(ValueSlotsTest, ThereAreAsManySlotsAsValuesAliveAtOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Case drawn = RandomCase(seed);
    const ValueSlots slots = AssignSlots(drawn.graph, drawn.lives());
    for (const size_t size : kSizes) {
      for (const SlotRows rows : {SlotRows::kStep, SlotRows::kTile}) {
        EXPECT_EQ(SlotsOf(slots, size, rows), MostAlive(drawn, size, rows))
            << size << " bytes a row" << (rows == SlotRows::kTile ? ", of a tile" : "");
      }
    }
  }
}

TEST(ValueSlotsTest, AllRowsOfAStepAreThereUnlessItIsSaid) {
  Case drawn = RandomCase(1);
  drawn.rows.clear();

  const ValueSlots slots = AssignSlots(drawn.graph, drawn.lives());

  EXPECT_EQ(slots.rows, std::vector<SlotRows>(slots.row_bytes.size(), SlotRows::kStep));
}

TEST(ValueSlotsTest, WithoutUsesInputsAloneHaveSlots) {
  Case none;
  none.graph.values.resize(3);
  none.inputs = {1};
  none.row_bytes = {8, 8, 8};

  const ValueSlots slots = AssignSlots(none.graph, none.lives());

  EXPECT_EQ(slots.slot, (std::vector<uint32_t>{model::kNone, 0, model::kNone}));
}

}  // namespace
}  // namespace lamina::compute_node
