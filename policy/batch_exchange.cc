// SPDX-License-Identifier: Apache-2.0
#include "policy/batch_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lamina::policy {
namespace {

// Times within this factor are the same but for rounding.
constexpr double kBetter = 1 - 1e-9;
// Mini-batches whose lengths differ by no more than such a part of the longer one are about as long
// as each other. Lanes are evened out where they differ by a quarter.
constexpr double kLengthParts = 8;

bool AreTheSame(const HybridRequest& one, const HybridRequest& other) {
  return one.activations == other.activations && one.kv == other.kv &&
         one.resident == other.resident;
}

std::vector<HybridTokens> TokensOf(absl::Span<const MiniBatch> batches) {
  std::vector<HybridTokens> all;
  for (const MiniBatch& batch : batches) {
    HybridTokens& tokens = all.emplace_back();
    for (const BatchRequest& request : batch) {
      tokens.activations += request.tokens.activations;
      tokens.kv += request.tokens.kv;
      tokens.resident += request.tokens.resident;
    }
  }
  return all;
}

// A mini-batch in which one request has taken another one's place.
HybridTokens Instead(const HybridTokens& batch, const HybridRequest& goes,
                     const HybridRequest& comes) {
  return {.activations = batch.activations - goes.activations + comes.activations,
          .kv = batch.kv - goes.kv + comes.kv,
          .resident = batch.resident - goes.resident + comes.resident};
}

bool KeepsLengths(const HybridTokens& one, const HybridTokens& other, const HybridTokens& new_one,
                  const HybridTokens& new_other) {
  const double apart = std::abs(new_one.all() - new_other.all());
  return apart <= std::abs(one.all() - other.all()) ||
         kLengthParts * apart <= std::max(new_one.all(), new_other.all());
}

// E2. The fixed parts of lines are left out: a mini-batch without tokens of a kind has none.
double LeastSeconds(HybridProfile profile, absl::Span<const HybridTokens> batches) {
  profile.load_kv.fixed = 0;
  profile.load_activations.fixed = 0;
  profile.make.fixed = 0;
  double link = 0;
  double device = 0;
  for (const HybridTokens& batch : batches) {
    link += LinkSeconds(profile, batch);
    device += DeviceSeconds(profile, batch);
  }
  return std::max(link, device);
}

// Goes through exchanges and keeps the best.
class ExchangeSearch {
 public:
  ExchangeSearch(const HybridProfile& profile, absl::Span<const MiniBatch> batches)
      : profile_(profile), batches_(batches), tokens_(TokensOf(batches)), tried_(tokens_) {}

  void TryAll(uint32_t batch, uint32_t other) {
    for (uint32_t i = 0; i < batches_[batch].size(); ++i) {
      for (uint32_t j = 0; j < batches_[other].size(); ++j) {
        if (batches_[batch][i].may_move && batches_[other][j].may_move) {
          Try({.batch = batch, .request = i, .other_batch = other, .other_request = j});
        }
      }
    }
    tried_[batch] = tokens_[batch];
    tried_[other] = tokens_[other];
  }
  const std::optional<BatchExchange>& best() const { return best_; }

 private:
  void Try(const BatchExchange& exchange) {
    const uint32_t b = exchange.batch;
    const uint32_t o = exchange.other_batch;
    const HybridRequest& one = batches_[b][exchange.request].tokens;
    const HybridRequest& other = batches_[o][exchange.other_request].tokens;
    if (AreTheSame(one, other)) {
      return;
    }
    tried_[b] = Instead(tokens_[b], one, other);
    tried_[o] = Instead(tokens_[o], other, one);
    if (!KeepsLengths(tokens_[b], tokens_[o], tried_[b], tried_[o])) {
      return;
    }
    const double seconds = RoundSeconds(profile_, tried_);
    if (!best_.has_value() || seconds < kBetter * best_seconds_) {
      best_ = exchange;
      best_seconds_ = seconds;
    }
  }

  const HybridProfile& profile_;
  const absl::Span<const MiniBatch> batches_;
  const std::vector<HybridTokens> tokens_;
  std::vector<HybridTokens> tried_;
  std::optional<BatchExchange> best_;
  double best_seconds_ = 0;
};

}  // namespace

double RoundSeconds(const HybridProfile& profile, absl::Span<const HybridTokens> batches) {
  double seconds = 0;
  for (size_t b = 0; b < batches.size(); ++b) {
    seconds += std::max(DeviceSeconds(profile, batches[b]),
                        LinkSeconds(profile, batches[(b + 1) % batches.size()]));
  }
  return seconds;
}

std::optional<BatchExchange> BestExchange(const HybridProfile& profile,
                                          absl::Span<const MiniBatch> batches) {
  ExchangeSearch search(profile, batches);
  for (uint32_t batch = 0; batch < batches.size(); ++batch) {
    for (uint32_t other = batch + 1; other < batches.size(); ++other) {
      search.TryAll(batch, other);
    }
  }
  return search.best();
}

std::vector<BatchExchange> ChooseExchanges(const HybridProfile& profile,
                                           absl::Span<const MiniBatch> batches) {
  std::vector<MiniBatch> now(batches.begin(), batches.end());
  const std::vector<HybridTokens> before = TokensOf(now);
  const double seconds_before = RoundSeconds(profile, before);
  const double wanted = (1 - kSavedMin) * seconds_before;
  size_t requests = 0;
  for (const MiniBatch& batch : batches) {
    requests += batch.size();
  }
  if (requests == 0 || LeastSeconds(profile, before) > wanted) {
    return {};
  }
  const double least_saved = kBetter * seconds_before / static_cast<double>(requests);
  std::vector<BatchExchange> exchanges;
  double seconds = seconds_before;
  while (exchanges.size() < kExchangesMax) {
    const std::optional<BatchExchange> best = BestExchange(profile, now);
    if (!best.has_value()) {
      break;
    }
    BatchRequest& one = now[best->batch][best->request];
    BatchRequest& other = now[best->other_batch][best->other_request];
    std::swap(one, other);
    const double after = RoundSeconds(profile, TokensOf(now));
    if (seconds - after < least_saved) {
      break;
    }
    one.may_move = false;
    other.may_move = false;
    exchanges.push_back(*best);
    seconds = after;
  }
  return seconds <= wanted ? exchanges : std::vector<BatchExchange>();
}

}  // namespace lamina::policy
