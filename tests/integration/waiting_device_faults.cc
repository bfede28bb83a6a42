// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/waiting_device_faults.h"

#include <cstring>
#include <memory>

#include "plan/epoch_shape.h"
#include "transport/registry.h"

namespace lamina::test_support {

void ExpectAnswersOutlive(LocalCluster& cluster, const std::vector<std::string>& leaving) {
  const GenerateResult undisturbed = cluster.Generate(Greedy(RandomPrompt(9, 1), 40));
  for (const std::string& leaves : leaving) {
    SCOPED_TRACE(leaves);
    const auto request = cluster.Start(Greedy(RandomPrompt(9, 1), 40));
    request->WaitForTokens(3);

    cluster.Detach(leaves);
    request->Wait();
    cluster.Attach(leaves);

    ASSERT_TRUE(cluster.WaitForState("serving").ok());
    ExpectSame({cluster.Generate(Greedy(RandomPrompt(9, 1), 40))}, {undisturbed});
  }
}

void ExpectOldEpochIsRefused(LocalCluster& cluster, const std::string& node,
                             const std::string& transport_uri, WindowsOfPeer windows) {
  const plan::EpochConfig config = cluster.link(node).config();
  const plan::WindowLayout layout(plan::WindowShapeOf(config));
  const auto transport = transport::MakeTransport(transport_uri).value();
  const auto region = transport->OpenRegion(cluster.link(node).region(), config.epoch).value();
  const plan::WindowHeader stale{.epoch = config.epoch - 1, .step = 1, .sender = 0};
  std::vector<std::byte> source(sizeof(stale));
  std::memcpy(source.data(), &stale, sizeof(stale));
  ASSERT_TRUE(transport->RegisterSource(source, transport::MemoryKind::kHost).ok());
  const auto request = cluster.Start(Greedy(RandomPrompt(9, 1), 600));
  request->WaitForTokens(3);

  uint64_t value = layout.SignalValue(1'000'000, 0);
  absl::Status put;
  const Nanos end = RealClock().Now() + LocalCluster::kTimeout;
  while ((put.ok() || absl::IsResourceExhausted(put)) && RealClock().Now() < end &&
         cluster.engine().GetStatus().epoch == config.epoch) {
    value += plan::kSubBatchesMax;
    for (uint32_t lane = 0; lane < config.lanes && put.ok(); ++lane) {
      const WindowPlace window = windows(layout, lane, value);
      const transport::SignalUpdate signal{.word = window.word, .value = value};
      put = transport->Put(*region, window.offset, source, &signal);
    }
    transport->Progress();
  }

  ASSERT_TRUE(cluster.WaitForEpoch(config.epoch + 1).ok());
  cluster.Cancel(*request);
  request->Wait();
  ASSERT_TRUE(cluster.WaitForState("serving").ok());
  EXPECT_GT(cluster.handler(node).Counters().refused_messages, 0u);
}

}  // namespace lamina::test_support
