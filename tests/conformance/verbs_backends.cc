// SPDX-License-Identifier: Apache-2.0
//
// verbs:// in the conformance suite, where there is an RDMA device.
#include <utility>

#include "tests/conformance/transport_test.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

std::vector<Backend> VerbsBackends() {
  std::vector<Backend> backends;
  for (const std::string& uri : VerbsUris()) {
    backends.push_back({"verbs", [uri]() -> MakeTransportFn {
                          return [uri] {
                            auto transport = MakeTransport(uri);
                            EXPECT_TRUE(transport.ok()) << transport.status();
                            return std::move(transport).value();
                          };
                        }});
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportTest, testing::ValuesIn(VerbsBackends()),
                         [](const testing::TestParamInfo<Backend>& tested) {
                           return tested.param.name;
                         });

}  // namespace

std::vector<std::string> VerbsUris() {
  return MakeTransport("verbs://").ok() ? std::vector<std::string>{"verbs://"}
                                        : std::vector<std::string>{};
}

}  // namespace lamina::transport
