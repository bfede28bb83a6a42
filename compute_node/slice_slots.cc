// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_slots.h"

namespace lamina::compute_node {
namespace {

ValueSlots Assign(const SliceProgram& program, absl::Span<const ValueUse> uses,
                  absl::Span<const model::ValueId> inputs, bool parts_elsewhere) {
  std::vector<size_t> row_bytes(program.graph().values.size());
  for (model::ValueId value = 0; value < row_bytes.size(); ++value) {
    row_bytes[value] = parts_elsewhere && program.IsPart(value) ? 0 : program.RowBytes(value);
  }
  // What the tail reads stays until it is gathered.
  return AssignSlots(
      program.graph(),
      {.uses = uses, .inputs = inputs, .kept = program.tail_inputs(), .row_bytes = row_bytes});
}

}  // namespace

// An attention makes its output when q, k, v are sent, since prompt chunks attend then and there,
// and reads its input until the slice has run to its end, since the transport may. What k and v
// were made from may be sent with them.
ValueSlots BodySlots(const SliceProgram& program, bool parts_elsewhere) {
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
  return Assign(program, uses, {}, parts_elsewhere);
}

ValueSlots TailSlots(const SliceProgram& program) {
  std::vector<ValueUse> uses;
  for (const model::OpId op : program.OpsIn(program.Tail())) {
    uses.push_back({.op = op});
  }
  return Assign(program, uses, program.tail_inputs(), /*parts_elsewhere=*/false);
}

}  // namespace lamina::compute_node
