// SPDX-License-Identifier: Apache-2.0
//
// Our own linear layer: spreads panels of weights over the pool, for some rows each, and strips of
// panels where there are too few for all threads (work_cuts.h). What is multiplied how is the
// arithmetic's (panel_arithmetic.h).
//
// Where a gated activation follows, a task multiplies a panel of gates and the panel of their ups,
// and activates the sums while they are in the second cache. Pairs of bf16 by panels of blocks go
// strip by strip, a strip of gates next to that of their ups, and leave the first cache activated.

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/block_panels.h"
#include "kernels/cpu/dense_tiles.h"
#include "kernels/cpu/linear_engine.h"
#include "kernels/cpu/onednn_probe_internal.h"
#include "kernels/cpu/pair_tiles.h"
#include "kernels/cpu/panel_arithmetic.h"
#include "kernels/cpu/panel_weights.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/task_shares.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/work_cuts.h"

namespace lamina::kernels::cpu {
namespace {

// Steps of blocks that are widened at once: for few rows the words stay in the first cache, for
// many in the second, where the sums need not come and go so often.
constexpr size_t kWidenedRowsFew = 8;
constexpr size_t kWidenedStepsFew = PanelWeights::kStepsTogether;
constexpr size_t kWidenedSteps = 4 * PanelWeights::kStepsTogether;

// Fewer rows have few sums, and all that counts there is how weights are read.
constexpr size_t kGatedRowsMin = 9;

// So few rows wait for weights, and each thread reads panels that lie next to each other. More of
// them compute, and what counts is that threads end together.
constexpr size_t kRowsInShares = 64;

// Weights that take more together come from memory when their turn comes again. Few last caches
// have more for the cores that share them, whatever the system of a guest says of its own.
constexpr uint64_t kCachedBytes = uint64_t{32} << 20;

// Features that one thread looks up: some 1 us each where they come from memory. Fewer of them wake
// no other thread.
constexpr size_t kLookUpsEach = 16;

// Tasks for each thread from which on panels of blocks have twice the rows, of which the last ones
// go in quarters. One thread alone always has them.
constexpr size_t kTasksOfTwice = kCutTasksBefore + 1;

template <class Arithmetic>
class OwnLinearEngine final : public LinearEngine {
  using Input = typename Arithmetic::Input;
  static constexpr size_t kInputsPerStep = Arithmetic::kType == DType::kBF16 ? 2 : 1;
  static constexpr size_t kRowsAtOnce = Arithmetic::kRowsAtOnce;
  static constexpr size_t kPanelSums = kRowsAtOnce * kPanelFeatures;
  static constexpr size_t kPanelWords = kWidenedSteps * kPanelFeatures;
  static_assert(Arithmetic::kGatedRows == 0 || !Arithmetic::kNoBias);

 public:
  explicit OwnLinearEngine(ThreadPool& pool) : pool_(pool), shares_(pool.threads()) {
    for (size_t worker = 0; worker < pool.threads(); ++worker) {
      sums_.push_back(hwy::AllocateAligned<float>(2 * kPanelSums));
      LAMINA_CHECK(sums_.back() != nullptr);
    }
  }

  std::string description() const override { return Arithmetic::Name(); }

  absl::StatusOr<std::unique_ptr<EngineWeights>> Pack(const WeightView& weights) override {
    return PackWords(*this, weights, Arithmetic::kType, Arithmetic::kTogether);
  }

  absl::StatusOr<std::unique_ptr<EngineWeights>> PackBlocks(const BlockView& weights) override {
    if (Arithmetic::kType == DType::kF32) {
      return absl::UnimplementedError("packed weights are rounded to bf16, and f32 is asked for");
    }
    while (scratch_.size() < sums_.size()) {
      scratch_.push_back(hwy::AllocateAligned<uint32_t>(2 * kPanelWords));
      LAMINA_CHECK(scratch_.back() != nullptr);
    }
    return PackBlockPanels(*this, weights, Arithmetic::Order());
  }

  absl::Status Prepare(const EngineWeights& weights, size_t rows_max) override {
    const auto& panels = static_cast<const PanelWeights&>(weights);
    if (!TakesAsItIs(panels)) {
      ReserveCopies(rows_max * InputsOf(panels));
    }
    return absl::OkStatus();
  }

  uint64_t scratch_bytes() const override {
    return copies_.size() * sizeof(Input) + sums_.size() * 2 * kPanelSums * sizeof(float) +
           scratch_.size() * 2 * kPanelWords * sizeof(uint32_t);
  }

  bool LooksUp(const EngineWeights& weights) const override {
    return Arithmetic::kType == DType::kBF16 &&
           static_cast<const PanelWeights&>(weights).words_are_exact();
  }

  void LookUp(const EngineWeights& weights, absl::Span<const uint32_t> ids,
              MatrixView<float> out) override {
    const auto& panels = static_cast<const PanelWeights&>(weights);
    const auto body = [&](size_t index, size_t worker) {
      const size_t end = std::min(ids.size(), (index + 1) * kLookUpsEach);
      for (size_t i = index * kLookUpsEach; i < end; ++i) {
        LookUpOne(panels, ids[i], worker, out.row(i));
      }
    };
    pool_.Run((ids.size() + kLookUpsEach - 1) / kLookUpsEach, std::ref(body));
  }

  void Multiply(absl::Span<const EngineProduct> products) override {
    tasks_.clear();
    TakeInputs(products);
    work_.clear();
    size_t rows_max = 0;
    for (const EngineProduct& product : products) {
      work_.push_back({product.in.rows, product.in.cols, product.out.cols});
      rows_max = std::max(rows_max, product.in.rows);
    }
    const DenseCut cut = CutDense(work_, kRowsAtOnce, pool_.threads_in_use());
    threads_ = cut.threads;
    in_turn_ = 1;
    for (size_t i = 0; i < products.size(); ++i) {
      ListTasks(products[i], work_[i], inputs_[i], cut, i + 1 == products.size());
    }
    RunTasks(rows_max, [&](size_t index, size_t worker) { Run(index, worker); });
  }

  bool MultiplyGated(const GatedProduct& product) override {
    const size_t hidden = product.out.cols;
    if (product.in.rows < kGatedRowsMin || hidden % kPanelFeatures != 0) {
      return false;
    }
    const std::optional<DenseCut> cut = CutGated({product.in.rows, product.in.cols, 2 * hidden},
                                                 kRowsAtOnce, pool_.threads_in_use());
    if (!cut.has_value()) {
      return false;
    }
    const EngineProduct both = {.weights = product.weights, .in = product.in};
    TakeInputs({&both, 1});
    threads_ = cut->threads;
    in_turn_ = 2;
    ListGated(product, inputs_[0], *cut);
    RunTasks(product.in.rows,
             [&](size_t index, size_t worker) { RunGated(product.activation, index, worker); });
    return true;
  }

 private:
  // The weights of one feature, as f32: of its strip alone.
  void LookUpOne(const PanelWeights& weights, size_t feature, size_t worker, float* to) const {
    const PanelPart part = {.panel = feature / kPanelFeatures,
                            .strip = feature % kPanelFeatures / kStripFeatures,
                            .strips = 1};
    uint32_t* const scratch = weights.widens() ? scratch_[worker].get() : nullptr;
    for (size_t first = 0; first < weights.steps(); first += kWidenedSteps) {
      const size_t count = std::min(kWidenedSteps, weights.steps() - first);
      const uint32_t* word =
          weights.Words(part, first, count, scratch).words + feature % kStripFeatures;
      for (size_t k = 2 * first; k < std::min(2 * (first + count), weights.in_features());
           k += 2, word += kStripFeatures) {
        to[k] = ToFloat({static_cast<uint16_t>(*word)});
        if (k + 1 < weights.in_features()) {
          to[k + 1] = ToFloat({static_cast<uint16_t>(*word >> 16)});
        }
      }
    }
  }

  // One panel, or a part of one, for at most kRowsAtOnce rows, or twice as many.
  struct Task {
    const PanelWeights* weights;
    PanelPart part;
    MatrixView<const Input> in;
    MatrixView<float> out;  // The part's columns.
  };

  static const PanelWeights& WeightsOf(const EngineProduct& product) {
    return static_cast<const PanelWeights&>(*product.weights);
  }
  // How many inputs a row has for the loop: whole steps.
  static size_t InputsOf(const PanelWeights& weights) { return kInputsPerStep * weights.steps(); }

  // Whether the loop takes activations for these weights where they are.
  static bool TakesAsItIs(const PanelWeights& weights) {
    return Arithmetic::IsInput(weights.in_features()) && weights.in_features() == InputsOf(weights);
  }

  void ReserveCopies(size_t inputs) { copies_.resize(std::max(copies_.size(), inputs)); }

  // inputs_: each product's input as the loop takes it, completed by zeros to whole steps, and
  // blocks.
  void TakeInputs(absl::Span<const EngineProduct> products) {
    size_t copied = 0;
    for (const EngineProduct& product : products) {
      const PanelWeights& weights = WeightsOf(product);
      copied += TakesAsItIs(weights) ? 0 : product.in.rows * InputsOf(weights);
    }
    ReserveCopies(copied);
    inputs_.clear();
    Input* to = copies_.data();
    for (const EngineProduct& product : products) {
      const ActivationView& in = product.in;
      if (TakesAsItIs(WeightsOf(product))) {
        inputs_.push_back({static_cast<const Input*>(in.data), in.rows, in.cols, in.stride});
      } else {
        const size_t stride = InputsOf(WeightsOf(product));
        inputs_.push_back({to, in.rows, stride, stride});
        to = CopyRows(in, stride, to);
      }
    }
  }

  static Input* CopyRows(const ActivationView& in, size_t stride, Input* to) {
    using Element = std::conditional_t<Arithmetic::kType == DType::kBF16, BFloat16, float>;
    const auto* from = static_cast<const Element*>(in.data);
    for (size_t i = 0; i < in.rows; ++i, from += in.stride) {
      Input* const end = to + stride;
      std::fill(Arithmetic::Copy(from, in.cols, to), end, Input{});
      to = end;
    }
    return to;
  }

  // Rows of a task: those of the cut, or where words are made of blocks twice as many, so that they
  // are made half as often.
  static size_t RowsEach(const PanelWeights& weights, const DenseWork& work, const DenseCut& cut) {
    const size_t each = cut.RowsEach(work.rows);
    if (!weights.widens() || cut.strips != kCutStripsMax || each == work.rows) {
      return each;
    }
    const size_t pieces = (work.rows + 2 * each - 1) / (2 * each);
    const size_t tasks = pieces * ((work.features + kPanelFeatures - 1) / kPanelFeatures);
    return cut.threads == 1 || tasks >= kTasksOfTwice * cut.threads ? 2 * each : each;
  }

  void ListTasks(const EngineProduct& product, const DenseWork& work, MatrixView<const Input> x,
                 const DenseCut& cut, bool last) {
    LAMINA_CHECK(product.first_out % kPanelFeatures == 0);
    const MatrixView<float>& out = product.out;
    const size_t features = cut.strips * kStripFeatures;
    ForDenseTasks(work, cut, RowsEach(WeightsOf(product), work, cut), last,
                  [&](size_t row, size_t rows, size_t col) {
                    const size_t feature = product.first_out + col;
                    tasks_.push_back({&WeightsOf(product),
                                      {.panel = feature / kPanelFeatures,
                                       .strip = feature % kPanelFeatures / kStripFeatures,
                                       .strips = cut.strips},
                                      x.Rows(row, rows),
                                      {out.row(row) + col, rows, std::min(features, out.cols - col),
                                       out.stride}});
                  });
  }

  // Tasks of gates, each followed by that of its ups, and where both go.
  void ListGated(const GatedProduct& product, MatrixView<const Input> x, const DenseCut& cut) {
    const auto& weights = static_cast<const PanelWeights&>(*product.weights);
    const size_t hidden = product.out.cols;
    tasks_.clear();
    activated_.clear();
    const DenseWork work = {x.rows, x.cols, hidden};
    // Words of both panels have to lie next to each other.
    const size_t rows_each =
        weights.steps() <= kWidenedSteps ? RowsEach(weights, work, cut) : cut.RowsEach(x.rows);
    ForDenseTasks(work, cut, rows_each, /*last=*/true, [&](size_t row, size_t rows, size_t col) {
      for (const size_t feature : {col, hidden + col}) {
        tasks_.push_back({&weights,
                          {.panel = feature / kPanelFeatures},
                          x.Rows(row, rows),
                          /*out=*/{}});
      }
      activated_.push_back(product.out.Rows(row, rows).Cols(col, kPanelFeatures));
    });
  }

  // Calls body(index, worker) for all tasks, or each in_turn_ of them.
  template <class Body>
  void RunTasks(size_t rows_max, const Body& body) {
    const size_t count = tasks_.size() / in_turn_;
    in_shares_ = rows_max <= kRowsInShares;
    if (!in_shares_) {
      return pool_.Run(count, threads_, std::ref(body));
    }
    shares_.Begin(count, threads_);
    const auto run_share = [&](size_t share, size_t worker) {
      shares_.RunShare(share, [&](size_t index) {
        body(index, worker);
        pool_.CountStep(worker);
      });
    };
    pool_.Run(threads_, threads_, std::ref(run_share));
  }

  // The task that the worker of this one will probably take next.
  size_t Next(size_t index) const {
    const size_t behind = index + 1;
    if (behind % in_turn_ != 0 || (in_shares_ && !shares_.Begins(behind / in_turn_))) {
      return behind;
    }
    return in_shares_ ? tasks_.size() : behind + in_turn_ * (threads_ - 1);
  }

  // What the worker will probably multiply next, if it is as long; else null.
  const uint32_t* Ahead(size_t index) const {
    const size_t next = Next(index);
    if (next >= tasks_.size() || !tasks_[next].part.whole() ||
        tasks_[next].weights->steps() != tasks_[index].weights->steps()) {
      return nullptr;
    }
    return tasks_[next].weights->Ahead(tasks_[next].part.panel);
  }

  // The loop writes all features of a part; where there are fewer, it writes elsewhere.
  void Run(size_t index, size_t worker) const {
    const Task& task = tasks_[index];
    const size_t features = task.part.strips * kStripFeatures;
    if (task.out.cols == features) {
      MultiplyPanel(task, index, task.out, worker);
      return;
    }
    const MatrixView<float> whole = Packed(sums_[worker].get(), task.out.rows, features);
    MultiplyPanel(task, index, whole, worker);
    for (size_t i = 0; i < whole.rows; ++i) {
      std::copy_n(whole.row(i), task.out.cols, task.out.row(i));
    }
  }

  // A task of gates, and that of their ups.
  void RunGated(Activation activation, size_t index, size_t worker) const {
    const ActivationView& out = activated_[index];
    const PanelWeights& weights = *tasks_[2 * index].weights;
    const bool in_strips = Arithmetic::kGatedRows > 0 && weights.widens();
    if (out.rows > kRowsAtOnce || (in_strips && weights.steps() <= kWidenedSteps)) {
      return RunGatedInPieces(activation, index, worker);
    }
    const MatrixView<float> gates = Packed(sums_[worker].get(), out.rows, kPanelFeatures);
    const MatrixView<float> ups = Packed(gates.data + kPanelSums, out.rows, kPanelFeatures);
    MultiplyPanel(tasks_[2 * index], 2 * index, gates, worker);
    MultiplyPanel(tasks_[2 * index + 1], 2 * index + 1, ups, worker);
    ActivateRows({activation, gates, ups.data, out});
  }

  // By panels of blocks, also more rows than have room for their sums: words of both are made, and
  // some rows after the others multiply them.
  void RunGatedInPieces(Activation activation, size_t index, size_t worker) const {
    const Task& gate = tasks_[2 * index];
    const Task& up = tasks_[2 * index + 1];
    const ActivationView& out = activated_[index];
    const size_t steps = gate.weights->steps();
    uint32_t* const scratch = scratch_[worker].get();
    const PanelWords words_of_gates = gate.weights->Words(gate.part, 0, steps, scratch);
    const PanelWords words_of_ups = up.weights->Words(up.part, 0, steps, scratch + kPanelWords);
    if constexpr (Arithmetic::kGatedRows > 0) {
      RunGatedInStrips(activation, index, words_of_gates, words_of_ups, sums_[worker].get());
    } else {
      for (size_t row = 0; row < out.rows; row += kRowsAtOnce) {
        const size_t rows = std::min(kRowsAtOnce, out.rows - row);
        const MatrixView<float> gates = Packed(sums_[worker].get(), rows, kPanelFeatures);
        const MatrixView<float> ups = Packed(gates.data + kPanelSums, rows, kPanelFeatures);
        MultiplyAllSteps(gate, row, words_of_gates, gates);
        MultiplyAllSteps(up, row, words_of_ups, ups);
        ActivateRows({activation, gates, ups.data, out.Rows(row, rows)});
      }
    }
  }

  // A strip of gates and that of their ups are two strips to the loop, as far apart as the panels.
  // Inputs of some rows come from the second cache or beyond once for all strips, and their sums
  // go no further than the first; activations are stored while the next strip is multiplied.
  void RunGatedInStrips(Activation activation, size_t index, const PanelWords& gates,
                        const PanelWords& ups, float* sums) const {
    const Task& gate = tasks_[2 * index];
    const Task& up = tasks_[2 * index + 1];
    const ActivationView& out = activated_[index];
    for (size_t row = 0; row < out.rows; row += Arithmetic::kGatedRows) {
      const size_t rows = std::min(Arithmetic::kGatedRows, out.rows - row);
      const MatrixView<float> both = Packed(sums, rows, 2 * kStripFeatures);
      for (size_t strip = 0; strip < kPanelStrips; ++strip) {
        const size_t first = strip * kStripFeatures;
        float bias[2 * kStripFeatures];
        std::copy_n(BiasOf(gate) + first, kStripFeatures, bias);
        std::copy_n(BiasOf(up) + first, kStripFeatures, bias + kStripFeatures);
        Arithmetic::Multiply({.words = gates.words + strip * gates.strip_words,
                              .strip_words = static_cast<size_t>(ups.words - gates.words),
                              .strips = 2,
                              .steps = gate.weights->steps(),
                              .in = gate.in.row(row),
                              .in_stride = gate.in.stride,
                              .rows = rows,
                              .bias = bias,
                              .out = both.data,
                              .out_stride = both.stride});
        ActivateRows({activation, both, both.data + kStripFeatures,
                      out.Rows(row, rows).Cols(first, kStripFeatures)});
      }
    }
  }

  // Rows of a task from `row` on, as many as `out` has, by words of all steps.
  static void MultiplyAllSteps(const Task& task, size_t row, const PanelWords& words,
                               MatrixView<float> out) {
    Arithmetic::Multiply({.words = words.words,
                          .strip_words = words.strip_words,
                          .strips = task.part.strips,
                          .steps = task.weights->steps(),
                          .in = task.in.row(row),
                          .in_stride = task.in.stride,
                          .rows = out.rows,
                          .bias = BiasOf(task),
                          .out = out.data,
                          .out_stride = out.stride});
  }

  static size_t StepsAtOnce(const Task& task) {
    if (!task.weights->widens()) {
      return Arithmetic::StepsAtOnce(task.in.rows);
    }
    return task.in.rows <= kWidenedRowsFew ? kWidenedStepsFew : kWidenedSteps;
  }

  static const float* BiasOf(const Task& task) {
    if (Arithmetic::kNoBias && !task.weights->has_bias()) {
      return nullptr;
    }
    return task.weights->bias(task.part.panel) + task.part.strip * kStripFeatures;
  }

  // False where it takes other weights, or fewer rows.
  bool MultiplyAsItLies(const Task& task, size_t index, MatrixView<float> out) const {
    if constexpr (Arithmetic::kAsTheyLie) {
      const PanelWeights::FewRows few = task.weights->FewRowsOf(task.part.panel);
      if (few.multiply != nullptr && task.in.rows <= kFewBlockRows) {
        few.multiply({.panel = few.panel,
                      .next = BlocksAhead(index),
                      .asked = AskedFor(index),
                      .strip = task.part.strip,
                      .strips = task.part.strips,
                      .steps = task.weights->steps(),
                      .in = task.in.data,
                      .in_stride = task.in.stride,
                      .rows = task.in.rows,
                      .bias = BiasOf(task),
                      .out = out.data,
                      .out_stride = out.stride});
        return true;
      }
    }
    return false;
  }

  // Asks ahead as Ahead() does, in a panel of blocks.
  const uint8_t* BlocksAhead(size_t index) const {
    const size_t next = Next(index);
    if (next >= tasks_.size() || !tasks_[index].part.whole() || !tasks_[next].part.whole() ||
        tasks_[next].weights != tasks_[index].weights) {
      return nullptr;
    }
    return tasks_[next].weights->FewRowsOf(tasks_[next].part.panel).panel;
  }

  // Whether the worker has probably asked for some of the task's blocks with its task before.
  bool AskedFor(size_t index) const {
    return in_turn_ == 1 && in_shares_ && !shares_.Begins(index) &&
           BlocksAhead(index - 1) != nullptr;
  }

  void MultiplyPanel(const Task& task, size_t index, MatrixView<float> out, size_t worker) const {
    if (MultiplyAsItLies(task, index, out)) {
      return;
    }
    const uint32_t* const ahead = Ahead(index);
    const size_t steps = task.weights->steps();
    uint32_t* const scratch = task.weights->widens() ? scratch_[worker].get() : nullptr;
    const bool from_memory = scratch == nullptr && WeightMemory::AllBytes() > kCachedBytes;
    for (size_t first = 0; first < steps;) {
      const size_t count = std::min(StepsAtOnce(task), steps - first);
      const PanelWords words = task.weights->Words(task.part, first, count, scratch);
      Arithmetic::Multiply({.words = words.words,
                            .strip_words = words.strip_words,
                            .strips = task.part.strips,
                            .next = ahead == nullptr ? nullptr : ahead + first * kPanelFeatures,
                            .from_memory = from_memory,
                            .steps = count,
                            .in = task.in.data + first * kInputsPerStep,
                            .in_stride = task.in.stride,
                            .rows = task.in.rows,
                            .first = first == 0,
                            .bias = first + count == steps ? BiasOf(task) : nullptr,
                            .out = out.data,
                            .out_stride = out.stride});
      first += count;
    }
  }

  ThreadPool& pool_;
  std::vector<Input> copies_;
  std::vector<MatrixView<const Input>> inputs_;
  std::vector<DenseWork> work_;  // The products'.
  std::vector<Task> tasks_;
  std::vector<ActivationView> activated_;  // What gated tasks make, of two of tasks_ each.
  size_t threads_ = 1;                     // That take the tasks.
  size_t in_turn_ = 1;                     // Tasks that one of them runs one after the other.
  bool in_shares_ = false;                 // Whether each of them takes neighbours,
  TaskShares shares_;                      // of which these are left.
  // [workers][2][rows at once x 64]: sums on their way to where they go.
  std::vector<hwy::AlignedFreeUniquePtr<float[]>> sums_;
  std::vector<hwy::AlignedFreeUniquePtr<uint32_t[]>> scratch_;  // [workers][2][steps x 64]; blocks.
};

}  // namespace

std::unique_ptr<LinearEngine> MakeOwnLinearEngine(DType compute_type, ThreadPool& pool) {
  if (compute_type == DType::kF32) {
    return std::make_unique<OwnLinearEngine<PlainF32>>(pool);
  }
  return std::make_unique<OwnLinearEngine<WidenedBF16>>(pool);
}

std::unique_ptr<LinearEngine> MakePairLinearEngine(ThreadPool& pool) {
  return HasPairTiles() && HasFastLoop(DType::kBF16)
             ? std::make_unique<OwnLinearEngine<PairsOfBF16>>(pool)
             : nullptr;
}

absl::StatusOr<std::unique_ptr<LinearEngine>> MakeTileLinearEngine(ThreadPool& pool) {
  LAMINA_RETURN_IF_ERROR(TilesOfThisHost());
  return std::make_unique<OwnLinearEngine<TilesOfBF16</*kEmulated=*/false>>>(pool);
}

std::unique_ptr<LinearEngine> MakeEmulatedTileLinearEngine(ThreadPool& pool) {
  return std::make_unique<OwnLinearEngine<TilesOfBF16</*kEmulated=*/true>>>(pool);
}

}  // namespace lamina::kernels::cpu
