// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_slots.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "common/check.h"

namespace lamina::compute_node {
namespace {

bool Contains(const std::vector<model::ValueId>& values, model::ValueId value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// [values]: the value that each is a copy of in the same type, which nobody else has to see: it may
// be read where that one lies. kNone for all others.
std::vector<model::ValueId> CopiesOf(const SliceProgram& program) {
  std::vector<model::ValueId> copies(program.graph().values.size(), model::kNone);
  for (const model::Op& op : program.graph().ops) {
    if (std::holds_alternative<model::ConvertOp>(op.body) &&
        program.TypeOf(op.inputs[0]) == program.TypeOf(op.output) && !program.Crosses(op.output) &&
        !program.IsPart(op.output) && !Contains(program.tail_inputs(), op.output)) {
      copies[op.output] = op.inputs[0];
    }
  }
  return copies;
}

// What is read as a copy stays until then.
void ReadWhereTheyLie(const SliceProgram& program, const std::vector<model::ValueId>& copies,
                      std::vector<ValueUse>& uses) {
  for (ValueUse& use : uses) {
    if (use.also_read != model::kNone && copies[use.also_read] != model::kNone) {
      use.also_read = copies[use.also_read];
    }
    for (const model::ValueId input : program.graph().ops[use.op].inputs) {
      if (use.reads && copies[input] != model::kNone) {
        LAMINA_CHECK(use.also_read == model::kNone || use.also_read == copies[input]);
        use.also_read = copies[input];
      }
    }
  }
}

// [ops]: which of the program's ranges runs each; kNone for attentions, reductions and the tail.
std::vector<uint32_t> RangesOfOps(const SliceProgram& program) {
  std::vector<uint32_t> range_of(program.graph().ops.size(), model::kNone);
  const std::vector<OpRange> ranges = program.Ranges();
  for (uint32_t range = 0; range < ranges.size(); ++range) {
    for (const model::OpId op : program.OpsIn(ranges[range])) {
      range_of[op] = range;
    }
  }
  return range_of;
}

// Whether others than ops of ranges see the value: the host, other shards, the tail.
bool IsSeen(const SliceProgram& program, model::ValueId value) {
  return program.Crosses(value) || program.IsPart(value) || Contains(program.tail_inputs(), value);
}

ValueSlots Assign(const SliceProgram& program, std::vector<ValueUse> uses,
                  absl::Span<const model::ValueId> inputs, bool parts_elsewhere,
                  absl::Span<const SlotRows> rows) {
  const std::vector<model::ValueId> copies = CopiesOf(program);
  ReadWhereTheyLie(program, copies, uses);
  std::vector<size_t> row_bytes(program.graph().values.size());
  for (model::ValueId value = 0; value < row_bytes.size(); ++value) {
    const bool elsewhere =
        copies[value] != model::kNone || (parts_elsewhere && program.IsPart(value));
    row_bytes[value] = elsewhere ? 0 : program.RowBytes(value);
  }
  // What the tail reads stays until it is gathered.
  ValueSlots slots = AssignSlots(program.graph(), {.uses = uses,
                                                   .inputs = inputs,
                                                   .kept = program.tail_inputs(),
                                                   .row_bytes = row_bytes,
                                                   .rows = rows});
  for (model::ValueId value = 0; value < copies.size(); ++value) {
    if (copies[value] != model::kNone) {
      slots.slot[value] = slots.slot[copies[value]];
    }
  }
  return slots;
}

}  // namespace

std::vector<SlotRows> RowsOfValues(const SliceProgram& program) {
  const model::Graph& graph = program.graph();
  const std::vector<uint32_t> range_of = RangesOfOps(program);
  std::vector<uint32_t> made_in(graph.values.size(), model::kNone);
  std::vector<SlotRows> rows(graph.values.size(), SlotRows::kStep);
  for (model::OpId op = 0; op < graph.ops.size(); ++op) {
    const model::ValueId made = graph.ops[op].output;
    made_in[made] = range_of[op];
    if (range_of[op] != model::kNone && !IsSeen(program, made)) {
      rows[made] = SlotRows::kTile;
    }
  }
  for (model::OpId op = 0; op < graph.ops.size(); ++op) {
    for (const model::ValueId input : graph.ops[op].inputs) {
      if (range_of[op] != made_in[input]) {
        rows[input] = SlotRows::kStep;
      }
    }
  }
  // It may be sent while the attention is away.
  for (uint32_t slice = 0; slice + 1 < program.slice_count(); ++slice) {
    if (const model::ValueId input = KvInputOf(program, slice); input != model::kNone) {
      rows[input] = SlotRows::kStep;
    }
  }
  // A copy lies where that lies which it is a copy of.
  const std::vector<model::ValueId> copies = CopiesOf(program);
  for (model::ValueId value = 0; value < copies.size(); ++value) {
    if (copies[value] != model::kNone && rows[value] == SlotRows::kStep) {
      rows[copies[value]] = SlotRows::kStep;
    }
  }
  return rows;
}

// An attention makes its output when q, k, v are sent, since prompt chunks attend then and there,
// and reads its input until the slice has run to its end, since the transport may. What k and v
// were made from may be sent with them.
ValueSlots BodySlots(const SliceProgram& program, bool parts_elsewhere,
                     absl::Span<const SlotRows> rows) {
  std::vector<ValueUse> uses;
  for (uint32_t s = 0; s + 1 < program.slice_count(); ++s) {
    const model::Slice& slice = program.split().slices[s];
    for (uint32_t i = 0; i < slice.ops.size(); ++i) {
      if (i == slice.ops_before_send) {
        uses.push_back({.op = slice.attention, .reads = false, .also_read = KvInputOf(program, s)});
      }
      uses.push_back({.op = slice.ops[i]});
    }
    const bool made = slice.ops_before_send < slice.ops.size();
    uses.push_back({.op = slice.attention,
                    .makes = !made,
                    .also_read = made ? model::kNone : KvInputOf(program, s)});
  }
  for (const model::OpId op : program.OpsIn(program.BeforeSend(program.slice_count() - 1))) {
    uses.push_back({.op = op});
  }
  return Assign(program, uses, {}, parts_elsewhere, rows);
}

ValueSlots TailSlots(const SliceProgram& program) {
  std::vector<ValueUse> uses;
  for (const model::OpId op : program.OpsIn(program.Tail())) {
    uses.push_back({.op = op});
  }
  return Assign(program, uses, program.tail_inputs(), /*parts_elsewhere=*/false, /*rows=*/{});
}

}  // namespace lamina::compute_node
