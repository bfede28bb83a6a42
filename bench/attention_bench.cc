// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-attention: attention's share of what the machine can do.
//
// Decode is bound by reading K and V: each figure is a share of the bandwidth of plain reads, by
// the same threads, taken right before and after each run of the kernel, because bandwidth drifts.
// Prefill is bound by multiply-adds: its figure is a share of their measured peak.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/churn.h"
#include "bench/flags.h"
#include "bench/fma_peak.h"
#include "bench/int8_batch.h"
#include "bench/pinned_cores.h"
#include "common/check.h"
#include "common/kv_form.h"
#include "compute_node/weighed_attention.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/k_tiles.h"
#include "kernels/pair_attention.h"
#include "kernels/processor_attention.h"
#include "kernels/tile_attention.h"

namespace lamina::bench {
namespace {

using kernels::AttentionItem;
using kernels::AttentionKernel;
using kernels::Extent;
using kernels::KvView;

struct Options {
  size_t threads = 2;
  int repeats = 7;
  size_t kv_mib = 768;
  std::string kernel;  // The end of a name, or auto; empty: the best canonical one.
  std::string only;    // Part of a section's name; empty: all.
  std::string json;
  std::vector<uint32_t> head_dims = {64, 128};
  std::vector<uint32_t> groups = {1, 3, 4, 8};
  std::vector<uint32_t> contexts = {256, 1024, 4096};
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Anonymous memory in transparent huge pages, filled with numbers near one: bf16 of random sign.
class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_(bytes) {
    constexpr size_t kHuge = size_t{2} << 20;
    void* map =
        mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LAMINA_CHECK(map != MAP_FAILED && "the arena fits in memory; see --kv-mib");
    const auto at = (reinterpret_cast<uintptr_t>(map) + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<BFloat16*>(at);
    madvise(data_, bytes, MADV_HUGEPAGE);
    uint32_t state = 1;
    for (size_t i = 0; i < bytes / sizeof(BFloat16); ++i) {
      state = state * 1664525u + 1013904223u;
      data_[i].bits = static_cast<uint16_t>(0x3f00u | (state >> 16 & 0x80ffu));
    }
  }

  BFloat16* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  BFloat16* data_;
  size_t bytes_;
};

// Plain reads of the first `bytes`, spread over the pool. Returns bytes/s.
double ReadBandwidth(const Arena& arena, size_t bytes, ThreadPool& pool) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::atomic<uint64_t> sink = 0;  // Keeps the compiler from dropping the reads.
  const auto* words = reinterpret_cast<const uint64_t*>(arena.data());
  const double seconds = Seconds([&] {
    pool.Run(bytes / kPiece, [&](size_t piece, size_t) {
      const uint64_t* p = words + piece * (kPiece / 8);
      uint64_t sums[16] = {};
      for (size_t i = 0; i < kPiece / 8; i += 16) {
        for (size_t j = 0; j < 16; ++j) {
          sums[j] += p[i + j];
        }
      }
      uint64_t all = 0;
      for (const uint64_t s : sums) {
        all += s;
      }
      sink.fetch_add(all, std::memory_order_relaxed);
    });
  });
  return static_cast<double>(bytes / kPiece * kPiece) / seconds;
}

// Sequences laid out in the arena, one query token (decode) or more (prefill) each.
struct Batch {
  AttentionDescriptor descriptor;
  KvView kv;
  std::vector<std::vector<Extent>> extents;
  std::vector<BFloat16> q;
  std::vector<BFloat16> out;
  std::vector<AttentionItem> items;
  size_t kv_bytes = 0;  // Read by one call.
  uint32_t context_max = 0;
};

Batch MakeBatch(const Arena& arena, const AttentionDescriptor& d, size_t slots,
                std::vector<std::vector<Extent>> extents, uint32_t query_tokens) {
  Batch batch = {.descriptor = d, .extents = std::move(extents)};
  batch.kv = {.k = arena.data(),
              .v = arena.data() + slots * d.kv_width(),
              .head_stride = slots * d.head_dim};
  const size_t rows = batch.extents.size() * query_tokens;
  batch.q.resize(rows * d.q_width());
  batch.out.resize(rows * d.q_width());
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (BFloat16& x : batch.q) {
    x = ToBFloat16(normal(random));
  }
  for (size_t i = 0; i < batch.extents.size(); ++i) {
    uint32_t tokens = 0;
    for (const Extent& extent : batch.extents[i]) {
      tokens += extent.tokens;
    }
    batch.kv_bytes += size_t{2} * sizeof(BFloat16) * tokens * d.kv_width();
    batch.context_max = std::max(batch.context_max, tokens);
    const size_t at = i * query_tokens * d.q_width();
    batch.items.push_back({.extents = batch.extents[i],
                           .first_position = tokens - query_tokens,
                           .query_tokens = query_tokens,
                           .q = batch.q.data() + at,
                           .q_stride = d.q_width(),
                           .out = batch.out.data() + at,
                           .out_stride = d.q_width()});
  }
  return batch;
}

AttentionDescriptor Describe(uint32_t head_dim, uint32_t kv_heads, uint32_t group) {
  return {.query_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

// Slots that fit, in whole tiles.
size_t Slots(const AttentionDescriptor& d, size_t bytes) {
  return bytes / (2 * sizeof(BFloat16) * d.kv_width()) / kernels::kTileSlots * kernels::kTileSlots;
}

std::vector<std::vector<Extent>> Contiguous(const std::vector<uint32_t>& tokens) {
  std::vector<std::vector<Extent>> extents;
  uint32_t slot = 0;
  for (const uint32_t n : tokens) {
    extents.push_back({{.first_slot = slot, .tokens = n}});
    slot += (n + 15) / 16 * 16;
  }
  return extents;
}

struct Figure {
  double bytes_per_second = 0;  // Median.
  double read = 0;              // Median of the reads next to it.
  double share = 0;             // Median of each run's share.
  double share_best = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        cores_(PinnedCores(options.threads)),
        pool_({.threads = options.threads, .cores = cores_, .spin_us = 1000}),
        arena_(options.kv_mib << 20),
        kernel_(ChooseKernel(options.kernel)) {}

  int Run() {
    std::printf("kernel %s, %zu threads, arena %zu MiB\n", kernel_.name(), pool_.threads(),
                arena_.bytes() >> 20);
    result_["kernel"] = kernel_.name();
    result_["threads"] = pool_.threads();
    result_["cores"] = cores_;
    Section("decode", [this] { Decode(); });
    Section("l3", [this] { InCache(); });
    Section("churn", [this] { Churn(); });
    Section("prefill", [this] { Prefill(); });
    Section("weights", [this] { Weights(); });
    Section("int8", [this] { Int8(); });
    if (!options_.json.empty()) {
      std::ofstream(options_.json) << result_.dump(2) << "\n";
    }
    return 0;
  }

 private:
  static const AttentionKernel& ChooseKernel(const std::string& part) {
    if (part == "auto") {
      const auto served =
          kernels::AttentionOfProcessor(kernels::FastAttention(), kernels::CpuAttention());
      return served.ok() ? **served : kernels::CpuAttention();
    }
    for (const auto variants :
         {kernels::CpuAttentionVariants(), kernels::CpuPairAttentionVariants(),
          kernels::CpuTileAttentionVariants()}) {
      for (const AttentionKernel* kernel : variants) {
        if (std::string(kernel->name()).ends_with(part)) {
          return *kernel;
        }
      }
    }
    return kernels::CpuAttention();
  }

  void Section(const std::string& name, const std::function<void()>& body) {
    if (options_.only.empty() || name == options_.only) {
      body();
    }
  }

  Figure Measure(const Batch& batch, size_t read_bytes, int calls) {
    const auto scratch = kernel_.MakeScratch(batch.descriptor, batch.items[0].query_tokens,
                                             batch.context_max, pool_.threads());
    std::vector<double> rates, reads, shares;
    ReadBandwidth(arena_, read_bytes, pool_);
    for (int i = 0; i < options_.repeats; ++i) {
      const double before = ReadBandwidth(arena_, read_bytes, pool_);
      const double seconds = Seconds([&] {
        for (int c = 0; c < calls; ++c) {
          kernel_.Attend(batch.descriptor, batch.kv, batch.items, *scratch, pool_);
        }
      });
      const double after = ReadBandwidth(arena_, read_bytes, pool_);
      rates.push_back(static_cast<double>(batch.kv_bytes) * calls / seconds);
      reads.push_back((before + after) / 2);
      shares.push_back(rates.back() / reads.back());
    }
    return {.bytes_per_second = Median(rates),
            .read = Median(reads),
            .share = Median(shares),
            .share_best = *std::max_element(shares.begin(), shares.end())};
  }

  void Decode() {
    std::printf("\ndecode from DRAM: KV GB/s, plain read GB/s next to it, share (best)\n");
    std::printf("%9s %6s %8s %6s %8s %8s %14s\n", "head_dim", "group", "context", "rows", "KV",
                "read", "share");
    for (const uint32_t head_dim : options_.head_dims) {
      for (const uint32_t group : options_.groups) {
        for (const uint32_t context : options_.contexts) {
          DecodeOne(head_dim, group, context);
        }
      }
    }
  }

  void DecodeOne(uint32_t head_dim, uint32_t group, uint32_t context) {
    const AttentionDescriptor d = Describe(head_dim, group == 3 ? 3 : 4, group);
    const size_t slots = Slots(d, arena_.bytes());
    const std::vector<uint32_t> tokens(slots / context, context);
    const Batch batch = MakeBatch(arena_, d, slots, Contiguous(tokens), 1);
    const Figure f = Measure(batch, arena_.bytes(), 1);
    std::printf("%9u %6u %8u %6zu %8.1f %8.1f %7.3f (%.3f)\n", head_dim, group, context,
                tokens.size(), f.bytes_per_second / 1e9, f.read / 1e9, f.share, f.share_best);
    result_["decode"].push_back({{"head_dim", head_dim},
                                 {"group", group},
                                 {"context", context},
                                 {"rows", tokens.size()},
                                 {"kv_gb_per_s", f.bytes_per_second / 1e9},
                                 {"read_gb_per_s", f.read / 1e9},
                                 {"share", f.share},
                                 {"share_best", f.share_best}});
  }

  // 8 MiB of KV for the whole pool: the bound of arithmetic, not of memory.
  void InCache() {
    std::printf("\ndecode from the last cache: KV GB/s, plain read GB/s\n");
    for (const uint32_t head_dim : options_.head_dims) {
      for (const uint32_t group : options_.groups) {
        const AttentionDescriptor d = Describe(head_dim, group == 3 ? 3 : 4, group);
        const size_t bytes = size_t{8} << 20;
        const size_t slots = Slots(d, bytes);
        const std::vector<uint32_t> tokens(slots / 1024, 1024);
        const Batch batch = MakeBatch(arena_, d, slots, Contiguous(tokens), 1);
        const Figure f = Measure(batch, bytes, 20);
        std::printf("%9u %6u %8.1f %8.1f\n", head_dim, group, f.bytes_per_second / 1e9,
                    f.read / 1e9);
        result_["l3"].push_back({{"head_dim", head_dim},
                                 {"group", group},
                                 {"kv_gb_per_s", f.bytes_per_second / 1e9},
                                 {"read_gb_per_s", f.read / 1e9}});
      }
    }
  }

  void Churn() {
    std::printf("\n64 sequences after churn, share of contiguous: median (best)\n");
    for (const uint32_t head_dim : {64u, 128u}) {
      const uint32_t group = head_dim == 64 ? 3 : 4;
      const AttentionDescriptor d = Describe(head_dim, group == 3 ? 3 : 4, group);
      const size_t slots = Slots(d, arena_.bytes());
      const ChurnResult churned = SimulateChurn(
          {.slots = static_cast<uint32_t>(std::min<size_t>(slots, 262144)), .sequences = 64});
      std::vector<uint32_t> tokens;
      for (const auto& extents : churned.extents) {
        uint32_t n = 0;
        for (const Extent& extent : extents) {
          n += extent.tokens;
        }
        tokens.push_back(n);
      }
      const Batch scattered = MakeBatch(arena_, d, slots, churned.extents, 1);
      const Batch straight = MakeBatch(arena_, d, slots, Contiguous(tokens), 1);
      std::vector<double> ratios;
      for (int i = 0; i < options_.repeats; ++i) {
        const double a = MeasureOnce(straight);
        const double b = MeasureOnce(scattered);
        const double c = MeasureOnce(straight);
        ratios.push_back((a + c) / 2 / b);
      }
      const double best = *std::max_element(ratios.begin(), ratios.end());
      std::printf("%9u %6u  mean extent %.0f tokens, mean sequence %.0f: %.3f (%.3f)\n", head_dim,
                  group, churned.mean_extent, churned.mean_tokens, Median(ratios), best);
      result_["churn"].push_back({{"head_dim", head_dim},
                                  {"group", group},
                                  {"mean_extent_tokens", churned.mean_extent},
                                  {"mean_sequence_tokens", churned.mean_tokens},
                                  {"share_of_contiguous", Median(ratios)},
                                  {"share_of_contiguous_best", best}});
    }
  }

  // Rows by fours, as a compute node attends those of a step, with their weights and without, in
  // turns.
  void Weights() {
    std::printf(
        "\ndecode of 4 rows at a time from DRAM, with weights summed over heads: time over that of "
        "the turns without them before and after\n");
    std::printf("%9s %6s %8s %8s %14s %6s\n", "head_dim", "group", "context", "median", "quartiles",
                "turns");
    for (const uint32_t head_dim : options_.head_dims) {
      for (const uint32_t group : options_.groups) {
        for (const uint32_t context : options_.contexts) {
          WeightsOne(head_dim, group, context);
        }
      }
    }
  }

  // Turns are of the same threads on the same cores and a millisecond or two long, in which the
  // machine does not change much, and each goes on where the last one ended, so that no K and V are
  // in a cache.
  void WeightsOne(uint32_t head_dim, uint32_t group, uint32_t context) {
    constexpr size_t kRows = 4;
    constexpr size_t kTurnBytes = size_t{48} << 20;
    constexpr int kPairs = 16;  // How many pairs of turns a repeat has.
    const AttentionDescriptor d = Describe(head_dim, group == 3 ? 3 : 4, group);
    const size_t slots = Slots(d, arena_.bytes());
    const std::vector<uint32_t> tokens(slots / context / kRows * kRows, context);
    if (tokens.empty()) {
      std::printf("%9u %6u %8u: the arena is too small\n", head_dim, group, context);
      return;
    }
    const Batch batch = MakeBatch(arena_, d, slots, Contiguous(tokens), 1);
    compute_node::WeighedAttention attention(kernel_, pool_, {&d, 1}, 1, context);
    std::vector<float> summed(kRows * size_t{context});
    std::vector<compute_node::WeighedAttention::Item> items(kRows);
    const size_t call_bytes = batch.kv_bytes / tokens.size() * kRows;
    const size_t calls = std::max<size_t>(1, kTurnBytes / call_bytes);
    size_t first = 0;
    const auto turn = [&](bool weighed) {
      return Seconds([&] {
        for (size_t call = 0; call < calls; ++call) {
          for (size_t row = 0; row < kRows; ++row) {
            items[row] = {.attention = batch.items[first + row],
                          .weights = weighed ? summed.data() + row * context : nullptr,
                          .stride = context};
          }
          if (weighed) {
            std::fill(summed.begin(), summed.end(), 0.0f);
          }
          attention.Attend(d, batch.kv, items);
          first = (first + kRows) % batch.items.size();
        }
      });
    };
    turn(true);  // Memory of weights has grown afterwards.
    std::vector<double> ratios;
    double before = turn(false);
    for (int i = 0; i < options_.repeats * kPairs; ++i) {
      const double with = turn(true);
      const double after = turn(false);
      ratios.push_back(2 * with / (before + after));
      before = after;
    }
    std::sort(ratios.begin(), ratios.end());
    const double low = ratios[ratios.size() / 4];
    const double high = ratios[ratios.size() * 3 / 4];
    std::printf("%9u %6u %8u %8.3f %8.3f-%.3f %6zu\n", head_dim, group, context, Median(ratios),
                low, high, ratios.size());
    result_["weights"].push_back({{"head_dim", head_dim},
                                  {"group", group},
                                  {"context", context},
                                  {"ratio", Median(ratios)},
                                  {"ratio_quartiles", {low, high}},
                                  {"turns", ratios.size()}});
  }

  double MeasureOnce(const Batch& batch) {
    const auto scratch = kernel_.MakeScratch(batch.descriptor, batch.items[0].query_tokens,
                                             batch.context_max, pool_.threads());
    return Seconds([&] {
      for (int c = 0; c < 4; ++c) {
        kernel_.Attend(batch.descriptor, batch.kv, batch.items, *scratch, pool_);
      }
    });
  }

  // Tokens of KV a second from INT8 over those from bf16, in turns; the bounds are bytes and what
  // INT8 reaches from the last cache.
  void Int8() {
    std::printf("\ndecode over INT8, %s: tokens of KV a second over bf16's from DRAM\n",
                kernels::CpuInt8Attention().name());
    std::printf("%9s %6s %8s %8s %8s %8s %8s %14s\n", "head_dim", "group", "context", "bf16 M/s",
                "ratio", "bytes", "in cache", "share (best)");
    for (const uint32_t head_dim : options_.head_dims) {
      for (const uint32_t group : options_.groups) {
        for (const uint32_t context : options_.contexts) {
          Int8One(head_dim, group, context);
        }
      }
    }
  }

  void Int8One(uint32_t head_dim, uint32_t group, uint32_t context) {
    const AttentionDescriptor d = Describe(head_dim, group == 3 ? 3 : 4, group);
    const size_t slots = Slots(d, arena_.bytes());
    const Batch bf16 =
        MakeBatch(arena_, d, slots, Contiguous(std::vector<uint32_t>(slots / context, context)), 1);
    Int8Batch all(d, arena_.bytes(), context);
    Int8Batch cached(d, std::min(arena_.bytes(), size_t{8} << 20), context, 20);
    std::vector<double> rates, ratios, shares, ceilings;
    const double bytes = static_cast<double>(KvSlotBytes({&d, 1}, KvForm::kBF16)) /
                         static_cast<double>(KvSlotBytes({&d, 1}, KvForm::kInt8));
    const auto rate = [](double tokens, const std::function<void()>& call) {
      return tokens / Seconds(call);
    };
    const auto scratch = kernel_.MakeScratch(d, 1, context, pool_.threads());
    const auto tokens = static_cast<double>(bf16.items.size()) * context;
    const auto plain = [&] { kernel_.Attend(d, bf16.kv, bf16.items, *scratch, pool_); };
    for (int i = 0; i < options_.repeats; ++i) {
      const double before = rate(tokens, plain);
      const double int8 = rate(all.tokens(), [&] { all.Attend(pool_); });
      const double after = rate(tokens, plain);
      const double in_cache = rate(cached.tokens(), [&] { cached.Attend(pool_); });
      rates.push_back((before + after) / 2);
      ratios.push_back(int8 / rates.back());
      ceilings.push_back(in_cache / rates.back());
      shares.push_back(ratios.back() / std::min(bytes, ceilings.back()));
    }
    const double best = *std::max_element(shares.begin(), shares.end());
    std::printf("%9u %6u %8u %8.1f %8.3f %8.3f %8.3f %7.3f (%.3f)\n", head_dim, group, context,
                Median(rates) / 1e6, Median(ratios), bytes, Median(ceilings), Median(shares), best);
    result_["int8"].push_back({{"head_dim", head_dim},
                               {"group", group},
                               {"context", context},
                               {"bf16_tokens_per_s", Median(rates)},
                               {"ratio", Median(ratios)},
                               {"byte_ratio", bytes},
                               {"in_cache_ratio", Median(ceilings)},
                               {"share", Median(shares)},
                               {"share_best", best}});
  }

  void Prefill() {
    const double peak = MeasureFmaPeak(0.3);
    std::printf("\nprefill of 512 tokens after 3584: GFLOP/s a core, share of the FMA peak %.0f\n",
                peak / 1e9);
    for (const uint32_t head_dim : options_.head_dims) {
      for (const uint32_t group : options_.groups) {
        const AttentionDescriptor d = Describe(head_dim, group == 3 ? 3 : 4, group);
        const size_t slots = 4096;
        const Batch batch = MakeBatch(arena_, d, slots, Contiguous({4096}), 512);
        const double flops = 4.0 * d.q_width() * 512 * (3584 + 256.5);
        std::vector<double> rates;
        for (int i = 0; i < options_.repeats; ++i) {
          rates.push_back(4 * flops / MeasureOnce(batch) / static_cast<double>(pool_.threads()));
        }
        std::printf("%9u %6u %8.1f %8.3f\n", head_dim, group, Median(rates) / 1e9,
                    Median(rates) / peak);
        result_["prefill"].push_back({{"head_dim", head_dim},
                                      {"group", group},
                                      {"gflop_per_s_core", Median(rates) / 1e9},
                                      {"fma_peak_gflop_per_s", peak / 1e9},
                                      {"share", Median(rates) / peak}});
      }
    }
  }

  const Options options_;
  const std::vector<int> cores_;  // Empty: no thread is pinned.
  ThreadPool pool_;
  Arena arena_;
  const AttentionKernel& kernel_;
  nlohmann::json result_;
};

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) {
  lamina::bench::Options options;
  CLI::App app("Measures attention against the bandwidth and the arithmetic of this machine.");
  app.add_option("--threads", options.threads, "Threads, the caller counted")
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "Runs of each case; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--kv-mib", options.kv_mib, "Size of the arena; far more than the last cache")
      ->capture_default_str()
      ->check(CLI::Range(64, 1 << 20));
  app.add_option(
      "--kernel", options.kernel,
      "AVX2, AVX3, AVX3_DL, AVX512_BF16 (pairs), AMX_BF16 (tiles), or auto: what nodes on this "
      "processor take with attention auto; the best canonical one if not given or not here");
  app.add_option("--only", options.only, "One section")
      ->check(CLI::IsMember({"decode", "l3", "churn", "prefill", "weights", "int8"}));
  app.add_option("--head-dims", options.head_dims, "Head sizes, except of churn")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--groups", options.groups, "Query heads of a KV head, except of churn")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--contexts", options.contexts, "Tokens of a sequence, for decode")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--json", options.json, "Also write the figures to this file");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  return lamina::bench::Bench(options).Run();
}
