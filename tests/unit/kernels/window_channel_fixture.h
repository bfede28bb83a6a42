// SPDX-License-Identifier: Apache-2.0
//
// What the suite of window channels runs on: a device with a channel, and its peers, which are
// threads of this process that use the processor, each with a transport of its own. Each has
// windows of its own, [lanes][parities], for the device's rows, and the device has windows
// [peers][lanes][parities] for theirs.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "tests/unit/kernels/window_channel_suite.h"
#include "transport/fake/fake_network.h"
#include "transport/registry.h"

namespace lamina::kernels {

inline constexpr size_t kRowBytes = 96;
inline constexpr size_t kRowsMax = 7;
inline constexpr size_t kWindowBytes = 4096;
inline constexpr uint64_t kAhead = 4;        // Units, of which records are kept.
inline constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.
inline constexpr Nanos kShort = Millis(2);

inline constexpr char kLateUri[] = "fake://window_channel";

// What windows are of. Those of fake:// come late, in pieces and disordered, and leave by an
// outbox, as those of verbs:// do.
inline std::vector<std::string> WindowUris() {
  std::vector<std::string> uris = {"shm://", kLateUri};
  if (transport::MakeTransport("verbs://").ok()) {
    uris.push_back("verbs://");
  }
  return uris;
}

class WindowChannelTest
    : public ::testing::TestWithParam<std::tuple<ChannelDeviceCase, uint32_t, std::string>> {
 protected:
  static constexpr uint32_t kLanes = ChannelDevice::kLanes;

  struct Peer {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::Region> queries;
    std::unique_ptr<transport::RemoteRegion> to_replies;
    std::vector<std::byte> source;  // With the windows of the replies.
  };

  void Make(Nanos timeout, bool counts_beats = false) {
    device_ = std::get<0>(GetParam()).make();
    replies_ = MakeRegion(*transport_, "replies", peers() * kLanes);
    for (uint32_t i = 0; i < peers(); ++i) {
      Peer peer = {.transport = transport::MakeTransport(uri()).value()};
      peer.queries = MakeRegion(*peer.transport, "queries", kLanes);
      peer.to_replies = peer.transport->OpenRegion(replies_->Descriptor(), 0).value();
      peer.source.resize(replies_->bytes().size());
      ASSERT_TRUE(peer.transport->RegisterSource(peer.source, transport::MemoryKind::kHost).ok());
      to_queries_.push_back(transport_->OpenRegion(peer.queries->Descriptor(), 0).value());
      peers_.push_back(std::move(peer));
    }
    out_ = device_->memory().Allocate(kLanes * peers() * kRowsMax * kRowBytes).value();
    in_ = device_->memory().Allocate(out_.bytes).value();
    host_ = device_->memory().AllocateHost(out_.bytes).value();
    ASSERT_TRUE(device_->memory().Synchronize().ok());
    MakeChannel(timeout, counts_beats);
  }
  void MakeChannel(Nanos timeout, bool counts_beats = false) {
    auto channel = device_->MakeChannel(Options(timeout, counts_beats));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
    std::vector<HostWindows> windows;
    for (const auto& to_peer : to_queries_) {
      windows.push_back(HostWindowsOf(to_peer->direct()));
    }
    const absl::Status reached = channel_->SetPeers(windows);
    ASSERT_TRUE(reached.ok()) << reached;
  }
  ChannelOptions Options(Nanos timeout, bool counts_beats = false) {
    return {.own = HostWindowsOf(replies_->direct()),
            .peers = peers(),
            .lanes = kLanes,
            .timeout = timeout,
            .counts_beats = counts_beats,
            .sends_kept = kAhead};
  }

  void TearDown() override {
    channel_.reset();  // Before the windows.
    if (device_ != nullptr) {
      EXPECT_TRUE(device_->memory().Synchronize().ok());
    }
  }
  void SetUpAgain() {
    TearDown();
    to_queries_.clear();
    peers_.clear();
    out_ = in_ = host_ = {};
  }

  uint32_t peers() const { return std::get<1>(GetParam()); }
  const std::string& uri() const { return std::get<2>(GetParam()); }
  static size_t RowsOf(uint32_t peer) { return 1 + peer * 2 % kRowsMax; }
  static size_t QueryWindow(uint32_t lane, uint64_t unit) {
    return (lane * 2 + unit % 2) * kWindowBytes;
  }
  static size_t ReplyWindow(uint32_t peer, uint32_t lane, uint64_t unit) {
    return ((peer * kLanes + lane) * 2 + unit % 2) * kWindowBytes;
  }
  static uint32_t ReplyWord(uint32_t peer, uint32_t lane) { return peer * kLanes + lane; }
  static uint64_t ValueOf(uint64_t unit) { return unit * 16; }
  static WindowStamp StampOf(uint32_t sender, uint32_t lane, uint64_t unit) {
    return {.magic = 77,
            .lane = lane,
            .epoch = 3,
            .step = unit,
            .rows = static_cast<uint32_t>(RowsOf(sender)),
            .sender = sender};
  }
  std::byte* RowsAt(const Buffer& buffer, uint32_t lane, uint32_t peer) const {
    return buffer.data + (lane * peers() + peer) * kRowsMax * kRowBytes;
  }

  static std::unique_ptr<transport::Region> MakeRegion(transport::Transport& transport,
                                                       const std::string& name, uint32_t words) {
    return transport
        .CreateRegion({.name = name, .bytes = words * 2 * kWindowBytes, .signal_words = words})
        .value();
  }

  // --- The device's side ---

  // Rows of a unit to all peers, and from all.
  absl::Status SendAll(uint32_t lane, uint64_t unit, const Buffer& from) {
    absl::Status status;
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      status.Update(channel_->Send(lane, unit,
                                   {.peer = peer,
                                    .window = QueryWindow(lane, unit),
                                    .stamp = StampOf(peer, lane, unit),
                                    .rows = RowsAt(from, lane, peer),
                                    .bytes = RowsOf(peer) * kRowBytes,
                                    .word = lane,
                                    .value = ValueOf(unit)}));
    }
    return status;
  }
  absl::Status TakeAll(uint32_t lane, uint64_t unit, const Buffer& to) {
    std::vector<RowsIn> in;
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      in.push_back({.peer = peer,
                    .window = ReplyWindow(peer, lane, unit),
                    .stamp = StampOf(peer, lane, unit),
                    .rows = RowsAt(to, lane, peer),
                    .bytes = RowsOf(peer) * kRowBytes,
                    .word = ReplyWord(peer, lane),
                    .value = ValueOf(unit)});
    }
    return channel_->Take(lane, unit, in);
  }
  // As a memory node does: what comes in a unit goes out again.
  void EnqueueAhead(uint32_t lane) {
    for (uint64_t unit = 1; unit <= kAhead; ++unit) {
      ASSERT_TRUE(TakeAll(lane, unit, in_).ok());
      ASSERT_TRUE(SendAll(lane, unit, in_).ok());
    }
  }

  // Waits until the lane's takes have ended.
  void Finish(uint32_t lane) {
    const Nanos deadline = RealClock().Now() + kLong;
    for (;;) {
      const absl::StatusOr<bool> taken = channel_->HasTaken(lane);
      ASSERT_TRUE(taken.ok()) << taken.status();
      if (*taken) {
        return;
      }
      ASSERT_LT(RealClock().Now(), deadline);
      std::this_thread::yield();
    }
  }
  // How long after its take the unit was sent; waits until it is.
  Nanos AwaitSent(uint32_t lane, uint64_t unit) {
    const Nanos deadline = RealClock().Now() + kLong;
    std::optional<Nanos> nanos = channel_->SentAfter(lane, unit);
    while (!nanos.has_value() && RealClock().Now() < deadline) {
      std::this_thread::yield();
      nanos = channel_->SentAfter(lane, unit);
    }
    EXPECT_TRUE(nanos.has_value()) << "lane " << lane << " unit " << unit;
    return nanos.value_or(-1);
  }

  // --- The peers' side ---

  // Puts rows of a unit whose bytes `value_of` gives by their offset, behind a stamp, and waits
  // until they have come.
  template <typename ValueOfByte>
  void Put(uint32_t peer, uint32_t lane, uint64_t unit, const WindowStamp& stamp,
           const ValueOfByte& value_of) {
    Peer& own = peers_[peer];
    const size_t offset = ReplyWindow(peer, lane, unit);
    const auto window =
        absl::MakeSpan(own.source).subspan(offset, kWindowHeaderBytes + RowsOf(peer) * kRowBytes);
    std::memcpy(window.data(), &stamp, sizeof(stamp));
    for (size_t i = kWindowHeaderBytes; i < window.size(); ++i) {
      window[i] = static_cast<std::byte>(value_of(i));
    }
    const transport::SignalUpdate signal{.word = ReplyWord(peer, lane), .value = ValueOf(unit)};
    const absl::Status put = own.transport->Put(*own.to_replies, offset, window, &signal);
    EXPECT_TRUE(put.ok()) << put;
    while (put.ok() && replies_->LoadSignal(signal.word) < signal.value) {
      own.transport->Progress();
      std::this_thread::yield();
    }
  }
  // Every byte that came, plus one.
  void Answer(uint32_t peer, uint32_t lane, uint64_t unit, const WindowStamp& stamp) {
    const std::byte* const query = Query(peer, lane, unit);
    Put(peer, lane, unit, stamp,
        [query](size_t i) { return std::to_integer<uint8_t>(query[i]) + 1; });
  }
  void Answer(uint32_t peer, uint32_t lane, uint64_t unit) {
    Answer(peer, lane, unit, StampOf(peer, lane, unit));
  }
  static uint8_t ByteOf(uint32_t lane, uint64_t unit, size_t i) {
    return static_cast<uint8_t>(lane * 101 + unit * 31 + i);
  }
  void PutUnit(uint32_t peer, uint32_t lane, uint64_t unit) {
    Put(peer, lane, unit, StampOf(peer, lane, unit),
        [=](size_t i) { return ByteOf(lane, unit, i); });
  }

  uint64_t QuerySignal(uint32_t peer, uint32_t lane) const {
    return peers_[peer].queries->LoadSignal(lane);
  }
  const std::byte* Query(uint32_t peer, uint32_t lane, uint64_t unit) const {
    return peers_[peer].queries->bytes().data() + QueryWindow(lane, unit);
  }
  // Waits for the unit's rows, and looks at their header.
  void Await(uint32_t peer, uint32_t lane, uint64_t unit) {
    const Nanos deadline = RealClock().Now() + kLong;
    while (QuerySignal(peer, lane) < ValueOf(unit)) {
      ASSERT_LT(RealClock().Now(), deadline);
      peers_[peer].transport->Progress();
      std::this_thread::yield();
    }
    WindowStamp got;
    std::memcpy(&got, Query(peer, lane, unit), sizeof(got));
    const WindowStamp expected = StampOf(peer, lane, unit);
    EXPECT_EQ(std::memcmp(&got, &expected, sizeof(got)), 0);
  }
  // That a word has come to `value`, and that nothing on its way raises it further.
  void ExpectLast(uint32_t peer, uint32_t lane, uint64_t value) {
    const Nanos deadline = RealClock().Now() + kLong;
    while (QuerySignal(peer, lane) < value && RealClock().Now() < deadline) {
      peers_[peer].transport->Progress();
      std::this_thread::yield();
    }
    for (int step = 0; step < 50; ++step) {  // More than anything of fake:// takes.
      peers_[peer].transport->Progress();
    }
    EXPECT_EQ(QuerySignal(peer, lane), value) << "peer " << peer;
  }
  // And that they are those of PutUnit().
  void ExpectUnit(uint32_t peer, uint32_t lane, uint64_t unit) {
    Await(peer, lane, unit);
    const std::byte* const window = Query(peer, lane, unit);
    for (size_t i = kWindowHeaderBytes; i < kWindowHeaderBytes + RowsOf(peer) * kRowBytes; ++i) {
      ASSERT_EQ(std::to_integer<uint8_t>(window[i]), ByteOf(lane, unit, i)) << "byte " << i;
    }
  }
  void ExpectUnitsAhead(uint32_t lane) {
    for (uint64_t unit = 1; unit <= kAhead; ++unit) {
      for (uint32_t peer = 0; peer < peers(); ++peer) {
        PutUnit(peer, lane, unit);
      }
      for (uint32_t peer = 0; peer < peers(); ++peer) {
        ExpectUnit(peer, lane, unit);
      }
    }
  }

  // A unit to which the peers answer as `answer` does, in a thread.
  template <typename AnswerAll>
  FailedTake FailingUnit(const AnswerAll& answer) {
    EXPECT_TRUE(SendAll(0, 1, out_).ok());
    std::jthread others(answer);
    EXPECT_TRUE(TakeAll(0, 1, in_).ok());
    Finish(0);
    const auto failed = channel_->FailureOf(0);
    EXPECT_TRUE(failed.has_value());
    EXPECT_FALSE(channel_->FailureOf(1).has_value());
    return failed.value_or(FailedTake{});
  }
  void AnswerAllBut(uint32_t silent, uint64_t unit) {
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      if (peer != silent) {
        Answer(peer, 0, unit);
      }
    }
  }

  // Rows of the device's memory. Closes the channel.
  std::vector<uint8_t> Fetch(const Buffer& from, uint32_t lane, uint32_t peer) {
    channel_->Close();
    const size_t bytes = RowsOf(peer) * kRowBytes;
    device_->memory().Copy(host_.data, RowsAt(from, lane, peer), bytes);
    EXPECT_TRUE(device_->memory().Synchronize().ok());
    std::vector<uint8_t> values(bytes);
    std::memcpy(values.data(), host_.data, bytes);
    return values;
  }

  const std::shared_ptr<transport::FakeNetwork> late_ = transport::FakeNetwork::Named(
      "window_channel", {.seed = 7, .delay_steps_max = 4, .shows_memory = true});
  const std::unique_ptr<transport::Transport> transport_ =
      transport::MakeTransport(uri()).value();  // The device's.
  std::unique_ptr<transport::Region> replies_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> to_queries_;
  std::unique_ptr<ChannelDevice> device_;
  Buffer out_;
  Buffer in_;
  Buffer host_;
  std::unique_ptr<WindowChannel> channel_;  // Goes before the windows and the device.
};

}  // namespace lamina::kernels
