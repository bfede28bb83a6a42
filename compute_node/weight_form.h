// SPDX-License-Identifier: Apache-2.0
//
// In which form a node holds matrices. Those that the file has quantised: packed, in the file's
// blocks, or widened to bf16; products have the same bits either way, so that the choice may follow
// from a measurement. Those of floats: as bf16, or quantised here to 8 bits, which changes the
// model and is only done where the user asks for it.
//
// Threading: one at a time.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/block_type.h"
#include "kernels/dense.h"

namespace lamina::compute_node {

enum class WeightForm : uint8_t {
  kAuto,    // Packed where decoding loses little by it, as measured, or bf16 does not fit.
  kPacked,  // Wherever the device can.
  kBF16,
  kInt8,  // Floats as 8 bits (kernels/int8_weights.h); the rest as with kPacked.
};

// Bytes that weights may take: the budget, or where that is 0, none, what this process may still
// take of the host's memory (common/host_memory.h). `root` is put before every path, for tests.
uint64_t WeightRoom(uint64_t budget, absl::string_view root = "");

// What is wanted where weights would take `bf16_bytes` when all are widened, and there are
// `memory_bytes`: auto packs what it can where they would not fit.
WeightForm FormThatFits(WeightForm wanted, uint64_t bf16_bytes, uint64_t memory_bytes);

// Seconds of one layer's product with 1, 4 and 16 rows, weights from memory: one round, in which
// both forms run one right after the other, so that both meet the same reads.
struct FormTimes {
  std::array<double, 3> packed = {};
  std::array<double, 3> bf16 = {};
};

// What rounds say together.
struct FormsCompared {
  // What products take packed, of what they take as bf16: by the sum of a round's times, in which
  // 16 rows count most. The median of rounds; where the host's reads differed the geometric mean of
  // the medians of slow rounds and of fast ones (reads_seen.h), however many there were of each.
  double ratio = 0;
  std::array<double, 3> by_rows = {};  // Such ratios by numbers of rows: medians of all rounds.
  double reads_low = 0;                // Bytes a second at which bf16 came with one row, the lowest
  double reads_high = 0;               // and the highest of all rounds.
};

// Requires: at least one round; times > 0.
FormsCompared CompareForms(absl::Span<const FormTimes> rounds);

// Whether decoding, at numbers of rows that are equally likely, is about as fast with packed
// weights, which take a third to a half of the memory. A tenth is given for the memory. By the
// geometric mean the form is taken that is off by less where it does worse, with slow reads or with
// fast ones. Requires: as CompareForms().
bool PackedPays(absl::Span<const FormTimes> rounds);

// Whether no further round is to be measured: there have been enough, or a few in each of which one
// form was clearly faster.
bool EnoughRounds(absl::Span<const FormTimes> rounds);

// So many blocks of a type of files for it to multiply. Their scales are finite and not alike, and
// no weight is subnormal: products of these take several times as long on some processors.
std::vector<uint8_t> BlocksToMeasure(const kernels::BlockTypeInfo& info, size_t blocks);

// How many copies of a layer take turns in a measurement: so many that those of bf16 are twice the
// last caches of the cores and no weight is met there again, but no more than 40, and no more than
// take a quarter of the bytes that the process may still take.
size_t CopiesToMeasure(uint64_t cache_bytes, uint64_t available_bytes);

// Measures a layer of its own, in rounds. Errors: those of Dense::PackBlocks().
// Cost: 0.1 to 0.5 s, less where one form is clearly faster, and 100 MB for as long; with last
// caches of more than 36 MB in all up to 0.8 GB, and the time to write them.
absl::StatusOr<std::vector<FormTimes>> MeasureForms(kernels::BlockType type, kernels::Dense& dense);

class WeightForms {
 public:
  // The device's; it outlives this.
  WeightForms(WeightForm wanted, kernels::Dense& dense) : wanted_(wanted), dense_(dense) {}

  // Whether weights of this type are to stay packed, if the device can. Auto measures each type
  // once, and logs what it found.
  bool Packs(kernels::BlockType type);

  // Whether matrices of floats become 8 bits.
  bool quantises() const { return wanted_ == WeightForm::kInt8; }

  // Whether it is worth asking at all.
  bool any() const { return wanted_ != WeightForm::kBF16; }

 private:
  const WeightForm wanted_;
  kernels::Dense& dense_;
  std::map<kernels::BlockType, bool> measured_;
};

}  // namespace lamina::compute_node
