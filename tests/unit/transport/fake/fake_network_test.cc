// SPDX-License-Identifier: Apache-2.0
#include "transport/fake/fake_network.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

struct Pair {
  explicit Pair(const FakeNetworkOptions& options) : network(options) {
    sender = network.MakeTransport();
    receiver = network.MakeTransport();
    region = receiver->CreateRegion({.name = "r", .bytes = 1024, .signal_words = 16}).value();
    remote = sender->OpenRegion(region->Descriptor(), 0).value();
    EXPECT_TRUE(sender->RegisterSource(source, MemoryKind::kHost).ok());
  }
  FakeNetwork network;
  std::vector<std::byte> source = std::vector<std::byte>(1024, std::byte{1});
  std::unique_ptr<Transport> sender;
  std::unique_ptr<Transport> receiver;
  std::unique_ptr<Region> region;
  std::unique_ptr<RemoteRegion> remote;
};

// What a receiver could have seen, step by step: which words are raised and which bytes are there.
std::string Trace(const FakeNetworkOptions& options) {
  Pair pair(options);
  std::string trace;
  for (uint32_t i = 0; i < 16; ++i) {
    const SignalUpdate signal = {.word = i, .value = 1};
    EXPECT_TRUE(pair.sender
                    ->Put(*pair.remote, i * 64,
                          absl::MakeConstSpan(pair.source).subspan(i * 64, 64), &signal)
                    .ok());
  }
  for (int step = 0; step < 60; ++step) {
    pair.sender->Progress();
    for (uint32_t i = 0; i < 16; ++i) {
      absl::StrAppend(&trace, pair.region->LoadSignal(i),
                      pair.region->bytes()[i * 64] == std::byte{1} ? "a" : ".",
                      pair.region->bytes()[i * 64 + 63] == std::byte{1} ? "b" : ".");
    }
    trace += '\n';
  }
  return trace;
}

TEST(FakeNetworkTest, SameSeedGivesTheSameRun) {
  const FakeNetworkOptions options = {.seed = 5, .delay_steps_max = 20};

  EXPECT_EQ(Trace(options), Trace(options));
}

TEST(FakeNetworkTest, SeedsDiffer) {
  EXPECT_NE(Trace({.seed = 5, .delay_steps_max = 20}), Trace({.seed = 6, .delay_steps_max = 20}));
}

TEST(FakeNetworkTest, DelayedDataLandsInPiecesAndNoSignalShowsBeforeEarlierData) {
  bool overtaken = false;  // A step in which a later word is raised and an earlier one is not.
  for (uint64_t seed = 5; seed < 25; ++seed) {
    const std::string trace = Trace({.seed = seed, .delay_steps_max = 20});

    EXPECT_THAT(trace, testing::HasSubstr("0a."));
    EXPECT_THAT(trace, testing::HasSubstr("0.b"));
    EXPECT_THAT(trace, testing::Not(testing::ContainsRegex("1a\\.|1\\.|\\.[^\n]*1")));
    overtaken = overtaken || trace.find("0ab1ab") != std::string::npos;
  }
  EXPECT_TRUE(overtaken);
}

TEST(FakeNetworkTest, WithoutDelaysPutIsComplete) {
  Pair pair({});
  const SignalUpdate signal = {.word = 0, .value = 4};

  ASSERT_TRUE(pair.sender->Put(*pair.remote, 0, pair.source, &signal).ok());

  EXPECT_EQ(pair.region->LoadSignal(0), 4u);
  EXPECT_EQ(pair.region->bytes()[1023], std::byte{1});
  EXPECT_EQ(pair.sender->Pending(*pair.remote), 0u);
}

TEST(FakeNetworkTest, LazyTargetReceivesOnlyWhileItProgresses) {
  Pair pair({.target_must_progress = true});
  const SignalUpdate signal = {.word = 0, .value = 1};
  ASSERT_TRUE(pair.sender->Put(*pair.remote, 0, pair.source, &signal).ok());

  for (int i = 0; i < 100; ++i) {
    pair.sender->Progress();
  }
  EXPECT_EQ(pair.region->LoadSignal(0), 0u);
  EXPECT_EQ(pair.sender->Pending(*pair.remote), 1u);

  pair.receiver->Progress();
  EXPECT_EQ(pair.region->LoadSignal(0), 1u);
  EXPECT_EQ(pair.sender->Pending(*pair.remote), 0u);
}

TEST(FakeNetworkTest, SourceThatWasNotRegisteredIsInvalid) {
  Pair pair({});
  const std::vector<std::byte> other(64);

  const absl::Status status = pair.sender->Put(*pair.remote, 0, other, nullptr);

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("not registered"));
}

TEST(FakeNetworkTest, FullQueueNamesItsLimit) {
  Pair pair({.delay_steps_max = 4, .in_flight_max = 3});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pair.sender->Put(*pair.remote, 0, pair.source, nullptr).ok());
  }

  const absl::Status status = pair.sender->Put(*pair.remote, 0, pair.source, nullptr);

  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("3 puts"));
  EXPECT_EQ(pair.sender->Pending(*pair.remote), 3u);
}

TEST(FakeNetworkTest, DestroyedSenderDropsWhatItHadInFlight) {
  Pair pair({.delay_steps_max = 4});
  const SignalUpdate signal = {.word = 0, .value = 1};
  ASSERT_TRUE(pair.sender->Put(*pair.remote, 0, pair.source, &signal).ok());

  pair.remote.reset();
  pair.sender.reset();
  for (int i = 0; i < 100; ++i) {
    pair.receiver->Progress();
  }

  EXPECT_EQ(pair.region->LoadSignal(0), 0u);
}

TEST(FakeNetworkTest, OnALinkThatHangsPutsNeitherArriveNorEnd) {
  Pair pair({.in_flight_max = 2});
  std::vector<std::string> asked;
  pair.network.SetLinks([&asked](const FakePut& put) {
    asked.push_back(
        absl::StrCat(put.from, ">", put.to, " ", put.bytes, put.raises ? " raises" : ""));
    return FakeFate::kHangs;
  });
  const SignalUpdate signal = {.word = 0, .value = 1};

  EXPECT_TRUE(pair.sender->Put(*pair.remote, 0, pair.source, nullptr).ok());
  EXPECT_TRUE(pair.sender->Put(*pair.remote, 0, {}, &signal).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pair.sender->Put(*pair.remote, 0, pair.source, nullptr)));
  for (int i = 0; i < 100; ++i) {
    pair.sender->Progress();
    pair.receiver->Progress();
  }

  EXPECT_THAT(asked, testing::ElementsAre(">r 1024", ">r 0 raises"));
  EXPECT_EQ(pair.sender->Pending(*pair.remote), 2u);
  EXPECT_EQ(pair.region->LoadSignal(0), 0u);
  pair.remote.reset();
  EXPECT_EQ(pair.region->bytes()[0], std::byte{0});
}

TEST(FakeNetworkTest, ALinkThatIsCutRefusesPutsUntilItIsMended) {
  Pair pair({});
  const auto own = pair.sender->CreateRegion({.name = "s", .bytes = 64}).value();
  pair.network.SetLinks([](const FakePut& put) {
    return put.from == "s" && put.to == "r" ? FakeFate::kIsRefused : FakeFate::kArrives;
  });
  const SignalUpdate signal = {.word = 0, .value = 1};

  EXPECT_TRUE(absl::IsUnavailable(pair.sender->Put(*pair.remote, 0, pair.source, &signal)));
  EXPECT_EQ(pair.sender->Pending(*pair.remote), 0u);
  EXPECT_EQ(pair.region->LoadSignal(0), 0u);

  pair.network.SetLinks(nullptr);
  EXPECT_TRUE(pair.sender->Put(*pair.remote, 0, pair.source, &signal).ok());
  EXPECT_EQ(pair.region->LoadSignal(0), 1u);
}

TEST(FakeNetworkTest, NamedNetworkIsSharedWithTheUriWhileItIsHeld) {
  const auto network = FakeNetwork::Named("shared", {.in_flight_max = 5});

  const auto transport = MakeTransport("fake://shared").value();
  EXPECT_EQ(transport->capabilities().in_flight_max, 5u);
  EXPECT_NE(MakeTransport("fake://other").value()->capabilities().in_flight_max, 5u);

  const auto region = transport->CreateRegion({.name = "r", .bytes = 64}).value();
  const auto peer = network->MakeTransport();
  EXPECT_TRUE(peer->OpenRegion(region->Descriptor(), 0).ok());
  const auto stranger = MakeTransport("fake://other").value();
  EXPECT_TRUE(absl::IsUnavailable(stranger->OpenRegion(region->Descriptor(), 0).status()));
}

}  // namespace
}  // namespace lamina::transport
