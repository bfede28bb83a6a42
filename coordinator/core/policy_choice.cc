// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/policy_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "cost/token_layer.h"

namespace lamina::core {
namespace {

// Service after which half of what the meter knows is of before.
constexpr double kForgetSeconds = 60;
constexpr double kStepSecondsMin = 1;
constexpr double kCorrectionLeast = 0.75;
constexpr double kCorrectionMost = 4.0 / 3;
// A step that takes more than this part of another's is as fast: no prediction is that good.
constexpr double kFaster = 0.99;

// A request that fills what there is runs by itself.
double RowsThatFit(const PolicyCandidate& candidate, const cost::PolicyLoad& load) {
  if (candidate.tokens_max <= 0) {
    return load.rows;
  }
  return std::min(load.rows, std::max(1.0, std::floor(candidate.tokens_max / load.context)));
}

std::string Words(const PolicyFigure& figure) {
  const cost::PolicyStep& step = figure.step;
  std::string words = absl::StrFormat("%.1f ms (dense %.1f, attention %.1f", figure.seconds * 1e3,
                                      step.dense * 1e3, step.attention * 1e3);
  if (step.transfer > 0) {
    absl::StrAppendFormat(&words, ", links %.1f", step.transfer * 1e3);
  }
  if (step.making > 0) {
    absl::StrAppendFormat(&words, ", making K and V of %.0f%% %.1f", step.share * 100,
                          step.making * 1e3);
  }
  if (figure.candidate.policy == cost::KvPolicy::kAttendRemote) {
    absl::StrAppendFormat(&words, ", %d lane%s", step.lanes, step.lanes == 1 ? "" : "s");
  }
  if (figure.waiting > 0) {
    absl::StrAppendFormat(&words, ", %.0f rows at a time", figure.rows);
  }
  words += ")";
  if (figure.prompts > 0) {
    absl::StrAppendFormat(&words, " and its prompts %.1f", figure.prompts * 1e3);
  }
  return words;
}

// In a sentence: "with local", "on memory nodes".
std::string WithPolicy(cost::KvPolicy policy) {
  return policy == cost::KvPolicy::kAttendRemote
             ? "on memory nodes"
             : absl::StrCat("with ", cost::KvPolicyName(policy));
}

double Factor(const PolicyCorrections& corrections, cost::KvPolicy policy) {
  const auto known = corrections.find(policy);
  return known == corrections.end() ? 1
                                    : std::clamp(known->second, kCorrectionLeast, kCorrectionMost);
}

// As what part of the current policy's step another one is worth an epoch.
double Worth(const PolicyCorrections& corrections, cost::KvPolicy current, cost::KvPolicy other) {
  return corrections.contains(current) && !corrections.contains(other) ? kWorthATry : kWorthAnEpoch;
}

std::string Words(const PolicyCorrections& corrections) {
  std::string words;
  for (const auto& [policy, factor] : corrections) {
    absl::StrAppendFormat(&words, "; steps %s took %.2f of what was predicted", WithPolicy(policy),
                          factor);
  }
  return words;
}

PolicyFigure FigureOf(const PolicyInputs& inputs, const PolicyCandidate& candidate,
                      const cost::PolicyLoad& load, const PolicyCorrections& corrections) {
  PolicyFigure figure{.candidate = candidate};
  if (!candidate.why_not.empty()) {
    return figure;
  }
  figure.rows = RowsThatFit(candidate, load);
  figure.waiting = load.rows - figure.rows;
  figure.step = StepOf(candidate.policy, inputs, {.rows = figure.rows, .context = load.context});
  figure.seconds =
      figure.step.seconds * Factor(corrections, candidate.policy) * (load.rows / figure.rows);
  figure.prompts =
      load.rows * load.prompts * cost::PromptTokenSeconds(candidate.policy, inputs.compute);
  return figure;
}

double Both(const PolicyFigure& figure) { return figure.seconds + figure.prompts; }

// What each takes at this end, or altogether, of what the fastest takes there, if that is more than
// anywhere before. Requires: as many seconds as figures; 0 for those that cannot be had.
void CountWorst(const std::vector<double>& seconds, std::vector<PolicyFigure>& figures) {
  double least = 0;
  for (const double one : seconds) {
    if (one > 0 && (least == 0 || one < least)) {
      least = one;
    }
  }
  for (size_t i = 0; i < figures.size(); ++i) {
    if (seconds[i] > 0) {  // Times may be infinite, where nodes have measured nothing.
      figures[i].worst = std::max(figures[i].worst, seconds[i] <= least ? 1 : seconds[i] / least);
    }
  }
}

// What each that can be had loses, altogether or at each end.
void CountLosses(absl::Span<const PolicyInputs> ends, const cost::PolicyLoad& load,
                 const PolicyCorrections& corrections, std::vector<PolicyFigure>& figures) {
  std::vector<double> seconds;
  if (ends.empty()) {
    for (const PolicyFigure& figure : figures) {
      seconds.push_back(figure.seconds > 0 ? Both(figure) : 0);
    }
    CountWorst(seconds, figures);
  }
  for (const PolicyInputs& end : ends) {
    seconds.clear();
    for (PolicyFigure& figure : figures) {
      const bool had = figure.seconds > 0;
      seconds.push_back(had ? Both(FigureOf(end, figure.candidate, load, corrections)) : 0);
      figure.ends.push_back(seconds.back());
    }
    CountWorst(seconds, figures);
  }
}

// "; from slow reads to fast ones 21.0 to 15.0 ms, with local 19.0 to 16.5 ms: at worst 1.11 and
// 1.10 of the fastest". Empty where no ends were weighed.
std::string WordsOfEnds(const PolicyFigure& chosen, const PolicyFigure& other) {
  if (chosen.ends.empty()) {
    return "";
  }
  return absl::StrFormat(
      "; from slow reads to fast ones %.1f to %.1f ms, %s %.1f to %.1f ms: at worst %.2f and %.2f "
      "of the fastest",
      chosen.ends.front() * 1e3, chosen.ends.back() * 1e3, WithPolicy(other.candidate.policy),
      other.ends.front() * 1e3, other.ends.back() * 1e3, chosen.worst, other.worst);
}

// Why the first one that cannot be had cannot.
std::string WhyNoOther(const std::vector<PolicyCandidate>& candidates, cost::KvPolicy chosen) {
  for (const PolicyCandidate& candidate : candidates) {
    if (candidate.policy != chosen && !candidate.why_not.empty()) {
      return candidate.why_not;
    }
  }
  return "there is no other policy";
}

const PolicyFigure* Find(const std::vector<PolicyFigure>& figures, cost::KvPolicy policy) {
  for (const PolicyFigure& figure : figures) {
    if (figure.candidate.policy == policy && figure.seconds > 0) {
      return &figure;
    }
  }
  return nullptr;
}

// Whether it is faster than another that comes before it in the list; or as fast with room for more
// rows at once, of which none waits for its turn then. Among policies that have room for all, the
// first loses nothing: what it keeps in addition lies in memory that the load does not need.
bool GoesBefore(const PolicyFigure& figure, const PolicyFigure& other) {
  return figure.worst < kFaster * other.worst ||
         (figure.rows > other.rows && kFaster * figure.worst <= other.worst);
}

// The fastest of all but one. Null: there is no other.
const PolicyFigure* Fastest(const std::vector<PolicyFigure>& figures,
                            const PolicyFigure* but = nullptr) {
  const PolicyFigure* fastest = nullptr;
  for (const PolicyFigure& figure : figures) {
    if (&figure != but && figure.seconds > 0 &&
        (fastest == nullptr || GoesBefore(figure, *fastest))) {
      fastest = &figure;
    }
  }
  return fastest;
}

std::string WhyNoTokens(const cost::PolicyStep& step) {
  std::string why = absl::StrFormat(
      "K and V of a token take %.3g us in a layer to make from its number", step.make_token * 1e6);
  if (step.from_activation > 0) {
    absl::StrAppendFormat(&why, ", %.1f times as long as from its activation,",
                          step.make_token / step.from_activation);
  }
  absl::StrAppendFormat(&why, " and %.3g us to come", step.send_token * 1e6);
  if (step.tile_seconds > 0) {
    absl::StrAppendFormat(&why, "; with %d tokens of each row a step would take %.1f ms, not %.1f",
                          cost::kTokenTile, step.tile_seconds * 1e3, step.seconds * 1e3);
  }
  return why;
}

// Where none are made from their numbers the step is that of fetch_heads, which is there for it; an
// epoch that is there already is as good.
void RuleOutIdleTokens(std::optional<cost::KvPolicy> current, std::vector<PolicyFigure>& figures) {
  if (current == cost::KvPolicy::kFetchTokens ||
      Find(figures, cost::KvPolicy::kFetchHeads) == nullptr) {
    return;
  }
  for (PolicyFigure& figure : figures) {
    if (figure.candidate.policy == cost::KvPolicy::kFetchTokens && figure.seconds > 0 &&
        figure.step.share == 0) {
      figure.candidate.why_not = WhyNoTokens(figure.step);
      figure.seconds = 0;
    }
  }
}

}  // namespace

double KvBytesReadPerToken(absl::Span<const AttentionDescriptor> layers, double context) {
  double bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    const double seen = layer.window == 0 ? context : std::min<double>(context, layer.window);
    bytes += 2.0 * 2.0 * layer.kv_width() * (seen / context);
  }
  return bytes;
}

double PolicyChoice::SecondsOf(cost::KvPolicy wanted) const {
  const PolicyFigure* figure = Find(figures, wanted);
  return figure == nullptr ? 0 : figure->seconds;
}

cost::PolicyStep StepOf(cost::KvPolicy policy, const PolicyInputs& inputs,
                        const cost::PolicyLoad& load) {
  switch (policy) {
    case cost::KvPolicy::kLocal:
      return cost::LocalStep(inputs.compute, load);
    case cost::KvPolicy::kAttendRemote:
      return cost::PoolsStep(inputs.compute, inputs.model, inputs.pools, load);
    default:
      return cost::FetchStep(policy, inputs.compute, inputs.model, inputs.pools, load);
  }
}

PolicyChoice ChoosePolicy(const PolicyInputs& inputs,
                          const std::vector<PolicyCandidate>& candidates,
                          const cost::PolicyLoad& load, std::optional<cost::KvPolicy> current,
                          const PolicyCorrections& corrections,
                          absl::Span<const PolicyInputs> ends) {
  LAMINA_CHECK(!candidates.empty());
  PolicyChoice choice{.policy = candidates.front().policy};
  for (const PolicyCandidate& candidate : candidates) {
    choice.figures.push_back(FigureOf(inputs, candidate, load, corrections));
  }
  RuleOutIdleTokens(current, choice.figures);
  CountLosses(ends, load, corrections, choice.figures);
  const PolicyFigure* const fastest = Fastest(choice.figures);
  if (fastest == nullptr) {
    choice.why = absl::StrCat("no policy can be had: ", candidates.front().why_not);
    return choice;
  }
  const PolicyFigure* chosen = fastest;
  const PolicyFigure* const now = current.has_value() ? Find(choice.figures, *current) : nullptr;
  if (now != nullptr &&
      fastest->worst >= Worth(corrections, *current, fastest->candidate.policy) * now->worst) {
    chosen = now;
  }
  choice.policy = chosen->candidate.policy;
  choice.why = absl::StrFormat(
      "%.0f row%s at %.0f tokens%s: a step takes %s", load.rows,
      std::lround(load.rows) == 1 ? "" : "s", load.context,
      load.prompts > 0 ? absl::StrFormat(", %.1f of a prompt to each", load.prompts) : "",
      Words(*chosen));
  if (const PolicyFigure* other = Fastest(choice.figures, chosen); other != nullptr) {
    absl::StrAppend(&choice.why, ", ", WithPolicy(other->candidate.policy), " ", Words(*other),
                    WordsOfEnds(*chosen, *other));
  } else {
    absl::StrAppend(&choice.why, "; ", WhyNoOther(candidates, choice.policy));
  }
  if (chosen != fastest) {
    absl::StrAppend(&choice.why, ", too little less for another epoch");
  }
  choice.why += Words(corrections);
  return choice;
}

void PolicyStepMeter::Add(double seconds, uint32_t rows, uint64_t context_tokens, uint64_t tokens) {
  const double kept = std::exp2(-seconds / kForgetSeconds);
  seen_ += seconds;
  seconds_ = kept * seconds_ + seconds;
  row_seconds_ = kept * row_seconds_ + seconds * rows;
  context_seconds_ = kept * context_seconds_ + seconds * static_cast<double>(context_tokens);
  tokens_ = kept * tokens_ + static_cast<double>(tokens);
}

bool PolicyStepMeter::measured() const { return seen_ >= kStepSecondsMin && tokens_ >= 1; }

cost::PolicyLoad PolicyStepMeter::load() const {
  LAMINA_CHECK(measured());
  return {.rows = row_seconds_ / seconds_, .context = context_seconds_ / row_seconds_};
}

void PolicyLoadMeter::Add(double seconds, uint32_t rows, uint64_t context_tokens, uint32_t lanes) {
  if (rows == 0 || seconds <= 0) {
    return;
  }
  const double weight = seconds_ == 0 ? 1
                                      : std::max(seconds / (seconds_ + seconds),
                                                 1 - std::exp2(-seconds / kForgetSeconds));
  seconds_ += seconds;
  rows_ += weight * (rows - rows_);
  lanes_ += weight * (lanes - lanes_);
  context_tokens_ += weight * (static_cast<double>(context_tokens) - context_tokens_);
}

void PolicyLoadMeter::AddTokens(double seconds, uint64_t generated, uint64_t prompts) {
  const double kept = std::exp2(-seconds / kForgetSeconds);
  generated_ = kept * generated_ + static_cast<double>(generated);
  prompts_ = kept * prompts_ + static_cast<double>(prompts);
}

cost::PolicyLoad PolicyLoadMeter::load() const {
  LAMINA_CHECK(seconds_ > 0);
  return {.rows = rows_,
          .context = context_tokens_ / rows_,
          .prompts = prompts_ / std::max(1.0, generated_)};
}

}  // namespace lamina::core
