// SPDX-License-Identifier: Apache-2.0
//
// Several compute nodes that come and go.

#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

// Replicas hold nothing that is not elsewhere: no request is lost with one, in any mode.
TEST(ReplicaTest, RequestsGoOnWhenAReplicaLeavesInMidRotation) {
  for (const PipelineMode mode : {PipelineMode::kRotational, PipelineMode::kFixed}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const std::unique_ptr<LocalCluster> cluster = MakeCluster({.model = SmallModel(),
                                                               .compute_nodes = 3,
                                                               .mode = mode,
                                                               .memory_nodes = 2,
                                                               .lanes = 4,
                                                               .chunk_tokens = 32});
    ASSERT_NE(cluster, nullptr);
    const std::vector<GenerateSpec> specs = LongRequests(10);
    const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
    for (const char* name : {"c1", "c0"}) {
      std::vector<std::shared_ptr<LocalRequest>> requests;
      for (const GenerateSpec& spec : specs) {
        requests.push_back(cluster->Start(spec));
      }
      for (const std::shared_ptr<LocalRequest>& request : requests) {
        request->WaitForTokens(2);
      }
      const uint64_t epoch = cluster->engine().GetStatus().epoch;
      cluster->Detach(name);

      std::vector<GenerateResult> results;
      for (const std::shared_ptr<LocalRequest>& request : requests) {
        results.push_back(request->Wait());
      }
      ExpectSame(results, undisturbed);
      EXPECT_TRUE(cluster->WaitForEpoch(epoch + 1).ok());
      cluster->Attach(name);
      EXPECT_TRUE(cluster->WaitForEpoch(epoch + 2).ok());
      EXPECT_TRUE(cluster->WaitForState("serving").ok());
    }
    ExpectSame(cluster->GenerateMany(specs), undisturbed);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

}  // namespace
}  // namespace lamina::test_support
