// SPDX-License-Identifier: Apache-2.0
#include "coordinator/best_choices.h"

#include <algorithm>
#include <iterator>

namespace lamina::coordinator {
namespace {

double MeanLogprob(const ChoiceOutput& choice) {
  double sum = 0;
  for (const plan::SampledToken& token : choice.tokens) {
    sum += static_cast<double>(token.logprob);
  }
  return choice.tokens.empty() ? 0 : sum / static_cast<double>(choice.tokens.size());
}

}  // namespace

void BestChoices::OnOutput(ChoiceOutput output) {
  ChoiceOutput& kept = choices_[output.index];
  kept.text += output.text;
  std::move(output.tokens.begin(), output.tokens.end(), std::back_inserter(kept.tokens));
  kept.finish = output.finish;
  kept.stop = output.stop;
  kept.usage = output.usage;
}

void BestChoices::OnDone(const absl::Status& status) {
  std::vector<ChoiceOutput> choices;
  for (auto& [index, choice] : choices_) {
    choices.push_back(std::move(choice));
  }
  choices_.clear();
  std::stable_sort(
      choices.begin(), choices.end(),
      [](const ChoiceOutput& a, const ChoiceOutput& b) { return MeanLogprob(a) > MeanLogprob(b); });
  if (status.ok()) {
    const size_t passed = std::min<size_t>(passed_, choices.size());
    for (size_t i = passed; i < choices.size(); ++i) {
      choices[0].usage.left_out_tokens += choices[i].usage.completion_tokens;
    }
    for (uint32_t i = 0; i < passed; ++i) {
      choices[i].index = i;
      sink_->OnOutput(std::move(choices[i]));
    }
  }
  sink_->OnDone(status);
}

}  // namespace lamina::coordinator
