// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "kernels/cpu/onednn_probe_internal.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels::cpu {
namespace {

using dnnl::memory;

constexpr size_t kLong = RowPieces::kLong;
constexpr size_t kExactMax = RowPieces::kExactMax;
constexpr size_t kRowsMax = kLong;  // Rows of the data.
// Numbers of rows that are tried first; where these agree, the others whose loop has the same name
// are believed.
constexpr std::array<size_t, 14> kSampled = {1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 48, 64, kLong};
// Values repeat after so many, a prime, so that large shapes cost no random numbers.
constexpr size_t kValues = 65521;

// Place of a number of rows in RowPieces::Alike.
constexpr size_t Index(size_t rows) { return rows == kLong ? kExactMax + 1 : rows; }

std::vector<float> RandomValues(size_t count) {
  Prng prng(count);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = i < kValues ? static_cast<float>(prng.Uniform() - 0.5) : values[i - kValues];
  }
  return values;
}

class Probe {
 public:
  Probe(const MatmulShape& shape, DType compute_type)
      : shape_(shape),
        compute_type_(compute_type),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        layout_(WeightsLayout(shape, compute_type, engine_)),
        in_(RandomValues(kRowsMax * shape.inputs)) {
    in_bf16_.resize(compute_type == DType::kBF16 ? in_.size() : 0);
    for (size_t i = 0; i < in_bf16_.size(); ++i) {
      in_bf16_[i] = ToBFloat16(in_[i]);
    }
    Pack();
  }

  // The name of the loop for so many rows; empty where oneDNN has none for the layout.
  std::string Loop(size_t rows) const {
    try {
      return DescribeMatmul(Shape(rows), compute_type_, layout_, engine_).impl_info_str();
    } catch (const dnnl::error&) {
      return "";
    }
  }

  // The whole product, in calls of so many rows; the last one overlaps the one before.
  const std::vector<float>& Product(size_t rows) {
    std::vector<float>& out = products_[rows];
    if (out.empty()) {
      out.resize(kRowsMax * shape_.features);
      const OnednnMatmul matmul(Shape(rows), compute_type_, layout_, engine_, 1);
      // Two calls show what a row's place in a call changes; few rows need no more than these.
      for (const size_t first : {size_t{0}, (kRowsMax - rows) / 2, kRowsMax - rows}) {
        matmul.Run(0, stream_, packed_, bias_, Input(first), out.data() + first * shape_.features);
        computed_[rows].push_back(first);
      }
    }
    return out;
  }

  // Whether rows that calls of `rows` have computed are those of calls of `reference`, all of whose
  // rows are computed.
  bool Agree(size_t rows, size_t reference) {
    const std::vector<float>& got = Product(rows);
    const std::vector<float>& wanted = Whole(reference);
    for (const size_t first : computed_[rows]) {
      const size_t at = first * shape_.features;
      if (std::memcmp(got.data() + at, wanted.data() + at,
                      rows * shape_.features * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  MatmulShape Shape(size_t rows) const {
    MatmulShape shape = shape_;
    shape.rows = rows;
    return shape;
  }

  const void* Input(size_t row) const {
    const size_t at = row * shape_.inputs;
    return compute_type_ == DType::kBF16 ? static_cast<const void*>(in_bf16_.data() + at)
                                         : static_cast<const void*>(in_.data() + at);
  }

  // All rows by calls of so many.
  const std::vector<float>& Whole(size_t rows) {
    std::vector<float>& out = whole_[rows];
    if (out.empty()) {
      out.resize(kRowsMax * shape_.features);
      const OnednnMatmul matmul(Shape(rows), compute_type_, layout_, engine_, 1);
      for (size_t row = 0; row < kRowsMax; row += rows) {
        const size_t first = std::min(row, kRowsMax - rows);
        matmul.Run(0, stream_, packed_, bias_, Input(first), out.data() + first * shape_.features);
      }
    }
    return out;
  }

  void Pack() {
    std::vector<float> weights = RandomValues(shape_.inputs * shape_.features);
    const memory::dims dims = {static_cast<memory::dim>(shape_.inputs),
                               static_cast<memory::dim>(shape_.features)};
    memory plain(memory::desc(dims, memory::data_type::f32, memory::format_tag::ab), engine_,
                 weights.data());
    packed_ = memory(layout_, engine_);
    dnnl::reorder(plain, packed_).execute(stream_, plain, packed_);
    if (shape_.bias) {
      bias_ = memory({{1, dims[1]}, memory::data_type::f32, memory::format_tag::ab}, engine_);
      std::copy_n(weights.begin(), shape_.features, static_cast<float*>(bias_.get_data_handle()));
    }
  }

  const MatmulShape shape_;
  const DType compute_type_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  const memory::desc layout_;
  std::vector<float> in_;
  std::vector<BFloat16> in_bf16_;
  memory packed_;
  memory bias_;                                    // Empty without one.
  std::map<size_t, std::vector<float>> products_;  // By rows of a call.
  std::map<size_t, std::vector<size_t>> computed_;
  std::map<size_t, std::vector<float>> whole_;
};

struct Candidates {
  std::array<bool, kExactMax + 2> brgemm = {};
  std::map<size_t, std::string> loops;  // By rows, of these.
};

Candidates FindCandidates(const Probe& probe) {
  Candidates found;
  for (size_t rows = 1; rows <= kLong; rows += rows == kExactMax ? kLong - kExactMax : 1) {
    std::string loop = probe.Loop(rows);
    if (absl::StartsWith(loop, "brg")) {
      found.brgemm[Index(rows)] = true;
      found.loops[rows] = std::move(loop);
    }
  }
  return found;
}

// Says which calls agree with those of `reference`, by the sampled numbers of rows alone; none
// where sampled ones of the same loop do not.
std::optional<RowPieces::Alike> BySample(Probe& probe, const Candidates& candidates,
                                         size_t reference) {
  std::map<std::string, bool> loop_agrees;
  for (const size_t rows : kSampled) {
    if (!candidates.brgemm[Index(rows)]) {
      continue;
    }
    const bool agrees = probe.Agree(rows, reference);
    const auto [loop, added] = loop_agrees.emplace(candidates.loops.at(rows), agrees);
    if (!added && loop->second != agrees) {
      return std::nullopt;
    }
  }
  RowPieces::Alike alike = {};
  for (const auto& [rows, loop] : candidates.loops) {
    const auto known = loop_agrees.find(loop);
    alike[Index(rows)] = known != loop_agrees.end() && known->second;
  }
  return alike;
}

// Says which calls agree with those of `reference`, with every number of rows tried.
RowPieces::Alike ByAll(Probe& probe, const Candidates& candidates, size_t reference) {
  RowPieces::Alike alike = {};
  for (const auto& [rows, loop] : candidates.loops) {
    alike[Index(rows)] = probe.Agree(rows, reference);
  }
  return alike;
}

absl::StatusOr<ProbedShape> ProbeCandidates(Probe& probe, const Candidates& candidates) {
  absl::Status refused = absl::UnimplementedError("");
  for (const size_t reference : {kExactMax, kExactMax / 2, size_t{16}, size_t{1}}) {
    if (!candidates.brgemm[reference]) {
      continue;
    }
    const std::optional<RowPieces::Alike> sampled = BySample(probe, candidates, reference);
    const absl::StatusOr<RowPieces> pieces =
        RowPieces::Create(sampled.has_value() ? *sampled : ByAll(probe, candidates, reference));
    if (pieces.ok()) {
      return ProbedShape{.loop = candidates.loops.at(reference), .pieces = *pieces};
    }
    refused = absl::UnimplementedError(
        absl::StrCat("oneDNN's ", candidates.loops.at(reference),
                     " is not row-invariant: ", pieces.status().message()));
  }
  return refused;
}

bool Includes(dnnl::cpu_isa used, dnnl::cpu_isa wanted) {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(used) & bits) == bits;
}

}  // namespace

memory::desc WeightsLayout(MatmulShape shape, DType compute_type, const dnnl::engine& engine) {
  shape.rows = kExactMax;
  return DescribeMatmul(shape, compute_type, engine).weights_desc();
}

absl::StatusOr<ProbedShape> ProbeShape(const MatmulShape& shape, DType compute_type) {
  try {
    const SingleThreadedOpenMp single;
    Probe probe(shape, compute_type);
    const Candidates candidates = FindCandidates(probe);
    if (candidates.loops.empty()) {
      return absl::UnimplementedError(absl::StrCat("oneDNN takes ", probe.Loop(kExactMax),
                                                   ", which is not known to be row-invariant"));
    }
    return ProbeCandidates(probe, candidates);
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(
        absl::StrCat("oneDNN cannot multiply ", DTypeName(compute_type), ": ", error.what()));
  }
}

bool HasFastLoop(DType compute_type) {
  return Includes(dnnl::get_effective_cpu_isa(), compute_type == DType::kBF16
                                                     ? dnnl::cpu_isa::avx512_core_bf16
                                                     : dnnl::cpu_isa::avx512_core);
}

bool HoldsTilesBack(dnnl::cpu_isa used, bool tiles_have_int8) {
  return !Includes(
      used, tiles_have_int8 ? dnnl::cpu_isa::avx512_core_amx : dnnl::cpu_isa::avx512_core_bf16);
}

bool TilesAreHeldBack() {
  return HoldsTilesBack(dnnl::get_effective_cpu_isa(), ProcessorHasInt8Tiles());
}

}  // namespace lamina::kernels::cpu
