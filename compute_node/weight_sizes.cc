// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_sizes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "common/dtype.h"
#include "compute_node/weight_quantiser.h"
#include "kernels/block_type.h"
#include "model/stored_rows.h"

namespace lamina::compute_node {
namespace {

using Part = model::LinearOp::Part;

// Rows whose blocks devices hold side by side.
constexpr size_t kStripRows = 16;

class Sizes {
 public:
  Sizes(const model::Graph& graph, const model::WeightSource& source,
        kernels::ComputeDevice& device, WeightForms& forms)
      : graph_(graph),
        source_(source),
        forms_(forms),
        dense_(device.dense()),
        table_element_(DTypeBytes(device.dense().compute_type())),
        element_(table_element_) {
    TryWidened();
  }

  uint64_t Matrices(model::OpId id) {
    const model::OpBody& body = graph_.ops[id].body;
    uint64_t bytes = 0;
    if (const auto* linear = std::get_if<model::LinearOp>(&body)) {
      bytes = Packed(id, linear->parts);
    } else if (const auto* experts = std::get_if<model::ExpertsOp>(&body)) {
      for (const model::ExpertsOp::Expert& expert : experts->experts) {
        bytes += Packed(id, expert.gate_up) + Packed(id, {&expert.down, 1});
      }
    }
    return bytes;
  }

  uint64_t Others(model::OpId id, absl::Span<const model::OpId> ops) {
    const model::OpBody& body = graph_.ops[id].body;
    if (const auto* linear = std::get_if<model::LinearOp>(&body)) {
      return Biases(linear->parts);
    }
    if (const auto* experts = std::get_if<model::ExpertsOp>(&body)) {
      uint64_t bytes = 0;
      for (const model::ExpertsOp::Expert& expert : experts->experts) {
        bytes += Biases(expert.gate_up) + Biases({&expert.down, 1});
      }
      return bytes;
    }
    if (const auto* embed = std::get_if<model::EmbedOp>(&body)) {
      return IsHead(embed->table, ops) ? 0 : Table(embed->table);
    }
    if (const auto* positions = std::get_if<model::PositionEmbedOp>(&body)) {
      return Table(positions->table);
    }
    if (const auto* norm = std::get_if<model::NormOp>(&body)) {
      return Vector(norm->weight) + Vector(norm->bias);
    }
    if (const auto* norm = std::get_if<model::HeadNormOp>(&body)) {
      return Vector(norm->q_weight) + Vector(norm->k_weight);
    }
    return 0;
  }

 private:
  // What the device makes of a small matrix: the bytes of an element, and whether it holds biases,
  // as zeros, of matrices that have none.
  void TryWidened() {
    constexpr size_t kSide = 64;
    const std::vector<std::byte> zeros(kSide * kSide * table_element_);
    const auto packed = dense_.Pack(zeros.data(), dense_.compute_type(), kSide, kSide, {});
    if (packed.ok() && MovableBytes(**packed) > 0) {
      element_ = MovableBytes(**packed) / (kSide * kSide);
      always_biases_ = (*packed)->bytes() > MovableBytes(**packed);
    }
  }

  // What products read apart from biases.
  static uint64_t MovableBytes(kernels::PackedLinear& linear) {
    uint64_t bytes = 0;
    for (const absl::Span<std::byte> piece : linear.Pieces()) {
      bytes += piece.size();
    }
    return bytes;
  }

  // Bytes of one block of a strip's rows; 0: the device multiplies no such blocks. It packs them.
  uint64_t StripBytes(kernels::BlockType type) {
    const auto known = strip_bytes_.find(type);
    if (known != strip_bytes_.end()) {
      return known->second;
    }
    const kernels::BlockTypeInfo& info = kernels::InfoOf(type);
    const std::vector<uint8_t> zeros(info.bytes, 0);
    const std::vector<const uint8_t*> rows(kStripRows, zeros.data());
    const kernels::BlockRows part = {.type = type, .rows = rows};
    const auto packed = dense_.PackBlocks({&part, 1}, info.elements, {});
    return strip_bytes_.emplace(type, packed.ok() ? MovableBytes(**packed) : 0).first->second;
  }

  bool Quantises(model::OpId op, model::WeightId id) const {
    return forms_.quantises() && IsOfFloats(graph_, source_, id) && IsQuantisable(graph_, op);
  }

  // The type of blocks in which the file's rows stay; none: they are widened.
  std::optional<kernels::BlockType> StoredType(model::WeightId id) {
    if (!forms_.any()) {
      return std::nullopt;
    }
    const auto stored = model::FindStoredRows(graph_, source_, id);
    const auto type = stored.ok() ? kernels::FindBlockType(stored->type) : std::nullopt;
    return type.has_value() && forms_.Packs(*type) ? type : std::nullopt;
  }

  uint64_t Elements(model::WeightId id) const {
    return uint64_t{graph_.weights[id].rows} * graph_.weights[id].cols;
  }
  uint64_t Vector(model::WeightId id) const {
    return id == model::kNone ? 0 : Elements(id) * sizeof(float);
  }

  uint64_t Biases(absl::Span<const Part> parts) const {
    uint64_t rows = 0;
    bool any = always_biases_;
    for (const Part& part : parts) {
      rows += graph_.weights[part.weight].rows;
      any = any || part.bias != model::kNone;
    }
    return any ? rows * sizeof(float) : 0;
  }

  // Bytes of the parts, stacked; widened all together where one has to be.
  uint64_t Packed(model::OpId op, absl::Span<const Part> parts) {
    uint64_t widened = 0;
    uint64_t packed = 0;
    bool stay = true;
    for (const Part& part : parts) {
      widened += Elements(part.weight) * element_;
      if (!stay) {
        continue;
      }
      const std::optional<kernels::BlockType> type =
          Quantises(op, part.weight) ? kernels::BlockType::kInt8 : StoredType(part.weight);
      stay = type.has_value() && StripBytes(*type) > 0;
      packed += stay ? Strips(*type, part.weight) : 0;
    }
    return stay ? packed : widened;
  }

  uint64_t Blocks(kernels::BlockType type, model::WeightId id) const {
    const size_t elements = kernels::InfoOf(type).elements;
    return (graph_.weights[id].cols + elements - 1) / elements;
  }
  uint64_t Strips(kernels::BlockType type, model::WeightId id) {
    return (graph_.weights[id].rows + kStripRows - 1) / kStripRows * Blocks(type, id) *
           StripBytes(type);
  }

  uint64_t Table(model::WeightId id) {
    if (!forms_.quantises() || !IsOfFloats(graph_, source_, id)) {
      if (const auto type = StoredType(id); type.has_value()) {
        return graph_.weights[id].rows * Blocks(*type, id) * kernels::InfoOf(*type).bytes;
      }
    }
    return Elements(id) * table_element_;
  }

  // Whether an LM head among the ops may stand for the table.
  bool IsHead(model::WeightId table, absl::Span<const model::OpId> ops) const {
    return std::any_of(ops.begin(), ops.end(), [&](model::OpId op) {
      const auto* linear = std::get_if<model::LinearOp>(&graph_.ops[op].body);
      return linear != nullptr && linear->parts.size() == 1 && linear->parts[0].weight == table &&
             !Quantises(op, table);
    });
  }

  const model::Graph& graph_;
  const model::WeightSource& source_;
  WeightForms& forms_;
  kernels::Dense& dense_;
  const uint64_t table_element_;  // Bytes of an element of a table that is not in blocks,
  uint64_t element_;              // and of a matrix.
  bool always_biases_ = false;
  std::map<kernels::BlockType, uint64_t> strip_bytes_;
};

}  // namespace

WeightSizes SizesOf(const model::Graph& graph, const model::WeightSource& source,
                    absl::Span<const model::OpId> ops, kernels::ComputeDevice& device,
                    WeightForms& forms) {
  Sizes sizes(graph, source, device, forms);
  WeightSizes found{.matrices = std::vector<uint64_t>(graph.ops.size(), 0)};
  for (const model::OpId op : ops) {
    found.matrices[op] = sizes.Matrices(op);
    found.others += sizes.Others(op, ops);
  }
  return found;
}

}  // namespace lamina::compute_node
