// SPDX-License-Identifier: Apache-2.0
//
// ModelWeights: the weights of a graph, resident in the form that the kernels take.
//
// A node that runs some layers only (a stage) holds the weights of those.
//
// Threading: built once; constant afterwards.
// Memory:    the device's. Linear weights once in the backend's packed layout: bf16, the file's own
//            blocks, or 8 bits (weight_form.h). An embedding table once as rows, or, where the
//            device looks up in packed weights that have its values, as the LM head alone that is
//            tied to it.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "compute_node/weight_form.h"
#include "kernels/compute_device.h"
#include "kernels/experts.h"
#include "model/model.h"

namespace lamina::compute_node {

// What an op takes of the time and memory of loading: the elements of its matrices and tables, and
// one more. PackedElementsOf(): of the matrices that are packed alone.
uint64_t ElementsOf(const model::Graph& graph, model::OpId id);
uint64_t PackedElementsOf(const model::Graph& graph, model::OpId id);

class ModelWeights {
 public:
  // Called while loading, with the share done in [0, 1]: 0 when it begins, and then growing.
  using Progress = std::function<void(double fraction)>;
  // Called with each packed matrix of an op, before the next op is loaded. It may move what is in
  // memory elsewhere. An error ends the loading.
  using Packed = std::function<absl::Status(model::OpId op, kernels::PackedLinear& linear)>;

  // Weights of no op at all.
  static ModelWeights None(kernels::ComputeDevice& device) {
    ModelWeights none;
    none.table_type_ = device.dense().compute_type();
    return none;
  }

  // Reads, dequantises and packs the weights of these ops, and no others. The device outlives them.
  // With `forms`, matrices and tables that the file has in blocks of a type stay as they are, as
  // far as it says and the device can; what cannot is logged, once for each reason. Errors: those
  // of ReadWeight() and of the device.
  //         kUnimplemented  experts on a device that is not the processor.
  static absl::StatusOr<ModelWeights> Load(const model::Model& model,
                                           kernels::ComputeDevice& device,
                                           absl::Span<const model::OpId> ops,
                                           const Progress& progress) {
    return Load(model.graph, *model.weights, device, ops, progress);
  }
  // Loads weights of another graph of the model: a shard's (model/shard.h).
  static absl::StatusOr<ModelWeights> Load(const model::Graph& graph,
                                           const model::WeightSource& source,
                                           kernels::ComputeDevice& device,
                                           absl::Span<const model::OpId> ops,
                                           const Progress& progress, const Packed& packed = {},
                                           WeightForms* forms = nullptr);

  // The parts of a LinearOp, stacked. nullptr for other ops.
  const kernels::PackedLinear* linear(model::OpId op) const {
    return op < linears_.size() ? linears_[op].get() : nullptr;
  }
  // The experts of an ExpertsOp, by id; none for other ops.
  absl::Span<const kernels::Expert> experts(model::OpId op) const {
    return op < experts_.size() ? absl::MakeConstSpan(experts_[op])
                                : absl::Span<const kernels::Expert>();
  }
  // A norm's weight or bias, or another vector.
  absl::Span<const float> vector(model::WeightId weight) const { return Floats(vectors_[weight]); }
  // The frequencies of a RopeOp.
  absl::Span<const float> frequencies(model::OpId op) const { return Floats(frequencies_[op]); }
  // Rows of an embedding: in the compute type, or in blocks, or the features of an LM head that is
  // tied to it.
  struct Table {
    const void* rows = nullptr;
    const kernels::BlockTable* blocks = nullptr;
    const kernels::PackedLinear* head = nullptr;
  };
  Table table(model::WeightId weight) const;
  DType table_type() const { return table_type_; }

  uint64_t bytes() const { return bytes_; }
  // Bytes of matrices and tables by the form in which they are held: "Q4_1", ..., "int8", "bf16";
  // "int8 as bf16" where the values alone are those of int8.
  const std::map<std::string, uint64_t>& bytes_by_form() const { return bytes_by_form_; }

 private:
  // Rows of one weight in blocks.
  struct StoredPart {
    kernels::BlockType type = kernels::BlockType::kQ80;
    std::vector<const uint8_t*> rows;
    std::vector<uint8_t> made;  // What rows are in; empty: the file.
  };

  ModelWeights() = default;
  // The graph whose weights are loaded, and their source.
  struct Origin {
    const model::Graph& graph;
    const model::WeightSource& source;
    WeightForms* forms;  // Null: bf16, or f32.
    absl::StatusOr<std::vector<float>> Read(model::WeightId id) const;
    // The weight's rows, if they are to stay as they are in the file.
    // Errors: kUnimplemented  they are not; says why where that is no wish.
    absl::StatusOr<StoredPart> Stored(model::WeightId id) const;
    // Whether the weight, of a matrix of this op, becomes 8 bits.
    bool Quantises(model::OpId op, model::WeightId id) const;
    // As Read() and Stored(), of a matrix of the op.
    absl::StatusOr<std::vector<float>> ReadMatrix(model::OpId op, model::WeightId id) const;
    absl::StatusOr<StoredPart> MatrixBlocks(model::OpId op, model::WeightId id) const;
  };
  static absl::Span<const float> Floats(const kernels::Buffer& buffer) {
    return {reinterpret_cast<const float*>(buffer.data), buffer.bytes / sizeof(float)};
  }
  // Packs parts of the op.
  absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> Pack(
      const Origin& model, model::OpId op, absl::Span<const model::LinearOp::Part> parts,
      kernels::Dense& dense);
  // The two forms of Pack(). Errors of the first: kUnimplemented  it has to be widened.
  absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackBlocks(
      const Origin& model, model::OpId op, absl::Span<const model::LinearOp::Part> parts,
      kernels::Dense& dense);
  static absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackWidened(
      const Origin& model, model::OpId op, absl::Span<const model::LinearOp::Part> parts,
      kernels::Dense& dense);
  // The table in blocks. Errors: kUnimplemented  it has to be widened.
  absl::Status LoadStoredTable(const Origin& model, model::WeightId weight,
                               kernels::ComputeDevice& device);
  void Count(absl::string_view form, uint64_t bytes);
  // Remembers why something that might have stayed in blocks is widened.
  void CountWidened(const absl::Status& why);
  absl::Status LoadExperts(const Origin& model, model::OpId op, kernels::ComputeDevice& device);
  // Loads an embedding: none of its own where the LM head can stand for it.
  absl::Status LoadTied(const Origin& model, model::WeightId weight,
                        absl::Span<const model::OpId> ops, kernels::ComputeDevice& device);
  absl::Status LoadTable(const Origin& model, model::WeightId weight,
                         kernels::ComputeDevice& device);
  absl::Status LoadVector(const Origin& model, model::WeightId weight,
                          kernels::ComputeDevice& device);
  absl::Status LoadOp(const Origin& model, model::OpId op, kernels::ComputeDevice& device);
  // Calls `packed`, if there is one, with what the op has.
  absl::Status TellPacked(model::OpId op, const Packed& packed);

  DType table_type_ = DType::kBF16;
  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<kernels::PackedLinear>> linears_;   // [ops]
  std::vector<std::vector<kernels::Expert>> experts_;             // [ops][experts]
  std::vector<kernels::Buffer> frequencies_;                      // [ops]
  std::vector<kernels::Buffer> vectors_;                          // [weights]
  std::vector<kernels::Buffer> tables_;                           // [weights]
  std::vector<std::optional<kernels::BlockTable>> block_tables_;  // [weights]
  std::vector<model::OpId> heads_;  // [weights], of tables that are an LM head too; else kNone.
  std::map<std::string, uint64_t> bytes_by_form_;
  std::map<std::string, uint32_t> widened_;  // Matrices and tables by reason.
};

}  // namespace lamina::compute_node
