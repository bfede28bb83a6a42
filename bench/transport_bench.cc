// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-transport: put and signal, one way, between two processes, against the least that
// the machine needs for it: a memcpy into shared memory and one cache line back and forth; over
// ucx:// against the least that UCX needs, two puts with a fence between. And the bandwidth of many
// puts after each other: from one place to another, which stay in the last cache, and with
// --source-mib from place after place of memory that is larger than any cache, alone and while the
// peer reads as much memory, as a compute node reads its weights.
//
// Both are taken in turns, the best of several rounds, because other work on the machine disturbs
// them. With both processes on one core the bare version yields while it waits, or it would wait
// for its time slice to end.

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "bench/allocation_counter.h"
#include "bench/flags.h"
#include "bench/ucp_peer.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "transport/registry.h"

namespace lamina::bench {
namespace {

using transport::MakeTransport;
using transport::Region;
using transport::RemoteRegion;
using transport::SignalCondition;
using transport::SignalUpdate;
using transport::Transport;

struct Options {
  std::string uri = "shm://";
  std::string json;
  int rounds = 7;
  int messages = 0;
  std::string cores;
  size_t source_mib = 0;
  size_t window_mib = 64;
};

constexpr std::array<size_t, 9> kSizes = {8,        64,       256,       1 << 10, 4 << 10,
                                          16 << 10, 64 << 10, 256 << 10, 1 << 20};
constexpr size_t kBytesMax = kSizes.back();
constexpr uint32_t kIdlePeers = 64;
// Behind those that IdlePoll() looks at.
constexpr uint32_t kStreamWord = kIdlePeers + 1;
constexpr std::array<size_t, 3> kStreamSizes = {4 << 10, 64 << 10, 1 << 20};
constexpr size_t kMiB = 1 << 20;
// What a peer that reads takes at a time, and how far apart the words are of which it adds one of
// each cache line.
constexpr size_t kReadWords = (64 << 10) / sizeof(uint64_t);
constexpr size_t kWordsOfLine = 64 / sizeof(uint64_t);
constexpr Nanos kAwaitMax = Seconds(20);
constexpr size_t kMiBMax = size_t{1} << 20;  // What options may ask for: 1 TiB.
constexpr absl::string_view kUcx = "ucx://";

// What both processes see without any transport: the bare link, and descriptors on their way.
struct alignas(64) BareWord {
  std::atomic<uint64_t> value;
};
struct BareLink {
  std::array<BareWord, 2> words;
  std::array<BareWord, 2> steps;  // Raised at every rendezvous, by yielding waiters.
  BareWord read_bytes;            // By side 1, while it waited, over all streams.
  std::array<std::array<char, 4096>, 2> descriptors;
  std::array<size_t, 2> descriptor_bytes;
  alignas(64) std::array<std::array<std::byte, kBytesMax>, 2> bytes;
};

// What side 1 does while a stream comes.
enum class PeerWork { kWaits, kReadsMemory };

struct StreamRates {
  double put = 0;   // Bytes a second.
  double read = 0;  // By the peer, at the same time.
};

// One of the two processes; side 0 measures, and has what streams walk through at its end.
class Side {
 public:
  Side(BareLink& link, size_t side, const Options& options)
      : link_(link),
        side_(side),
        transport_(MakeTransport(options.uri).value()),
        source_(side == 0 ? std::max(kBytesMax, options.source_mib * kMiB) : kBytesMax,
                std::byte{1}),
        read_(side == 0 ? 0 : options.source_mib * kMiB / sizeof(uint64_t), 1) {
    const size_t window = options.source_mib > 0 ? options.window_mib * kMiB : 0;
    region_ = transport_
                  ->CreateRegion({.name = "bench",
                                  .bytes = side == 0 ? kBytesMax : std::max(kBytesMax, window),
                                  .signal_words = kIdlePeers + 2})
                  .value();
    LAMINA_CHECK(transport_->RegisterSource(source_, transport::MemoryKind::kHost).ok());
    remote_ = transport_->OpenRegion(Exchange(region_->Descriptor()), 0).value();
    if (absl::StartsWith(options.uri, kUcx) && UcpPeer::IsBuilt()) {
      ucp_ = UcpPeer::Make(options.uri.substr(kUcx.size()), kBytesMax,
                           [this](const std::string& own) { return Exchange(own); });
    }
    Meet();
  }
  // The peer may still put until both are here.
  ~Side() { Meet(); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // Waits for the other side.
  void Meet() {
    const uint64_t step = ++step_;
    link_.steps[side_].value.store(step, std::memory_order_release);
    while (link_.steps[1 - side_].value.load(std::memory_order_acquire) < step) {
      sched_yield();
    }
  }

  // Nanoseconds one way, over `messages` there and back.
  double BarePingPong(size_t bytes, int messages, bool yield) {
    if (ucp_ != nullptr) {
      return PingPong(
          messages, [&] { ucp_->PutFencePut(bytes); }, [&] { ucp_->Await(); });
    }
    return PingPong(
        messages,
        [&] {
          std::memcpy(link_.bytes[1 - side_].data(), source_.data(), bytes);
          link_.words[1 - side_].value.store(++bare_sent_, std::memory_order_release);
        },
        [&] {
          ++bare_seen_;
          while (link_.words[side_].value.load(std::memory_order_acquire) < bare_seen_) {
            if (yield) {
              sched_yield();
            }
          }
        });
  }

  double TransportPingPong(size_t bytes, int messages) {
    const absl::Span<const std::byte> source(source_.data(), bytes);
    return PingPong(
        messages,
        [&] {
          const SignalUpdate signal = {.word = 0, .value = ++sent_};
          LAMINA_CHECK(transport_->Put(*remote_, 0, source, &signal).ok());
        },
        [&] { AwaitWord(0, ++seen_); });
  }

  // Bytes a second from side 0 to side 1, until the last of `messages` has been answered. The last
  // alone carries a signal, as ucx_perftest has it. All go from one place to another, or they walk:
  // each begins where the one before ended, in the source and in the target, over all calls.
  // Requires: `bytes` divides both, where they walk; --source-mib, where the peer reads.
  StreamRates Stream(size_t bytes, int messages, bool walks = false,
                     PeerWork peer = PeerWork::kWaits) {
    const uint64_t first = streamed_ + 1;
    streamed_ += static_cast<uint64_t>(messages);
    Meet();
    const uint64_t read_before = link_.read_bytes.value.load(std::memory_order_acquire);
    const Nanos start = RealClock().Now();
    if (side_ == 0) {
      for (uint64_t value = first; value <= streamed_;) {
        const SignalUpdate signal = {.word = kStreamWord, .value = value};
        const absl::Span<const std::byte> source(
            source_.data() + (walks ? walked_ % source_.size() : 0), bytes);
        const absl::Status status =
            transport_->Put(*remote_, walks ? walked_ % remote_->size_bytes() : 0, source,
                            value == streamed_ ? &signal : nullptr);
        LAMINA_CHECK(status.ok() || absl::IsResourceExhausted(status));
        if (status.ok()) {
          ++value;
          walked_ += walks ? bytes : 0;
        } else {
          transport_->Progress();
        }
      }
      AwaitWord(kStreamWord, streamed_);
    } else {
      if (peer == PeerWork::kReadsMemory) {
        ReadUntil(kStreamWord, streamed_);
      } else {
        AwaitWord(kStreamWord, streamed_);
      }
      const SignalUpdate signal = {.word = kStreamWord, .value = streamed_};
      LAMINA_CHECK(transport_->Put(*remote_, 0, {}, &signal).ok());
    }
    const double took = ToSeconds(RealClock().Now() - start);
    const uint64_t read = link_.read_bytes.value.load(std::memory_order_acquire) - read_before;
    return {.put = static_cast<double>(bytes) * messages / took,
            .read = static_cast<double>(read) / took};
  }

  // Nanoseconds to look at one idle word, among 64 before one that holds. Side 1 raises that one.
  double IdlePoll() {
    constexpr int kLooks = 20000;
    if (side_ == 1) {
      const SignalUpdate signal = {.word = kIdlePeers, .value = 1};
      LAMINA_CHECK(transport_->Put(*remote_, 0, {}, &signal).ok());
    }
    Meet();
    std::array<SignalCondition, kIdlePeers + 1> conditions;
    for (uint32_t word = 0; word <= kIdlePeers; ++word) {
      conditions[word] = {.word = word, .at_least = word == kIdlePeers ? 1 : UINT64_MAX};
    }
    const Nanos start = RealClock().Now();
    for (int look = 0; side_ == 0 && look < kLooks; ++look) {
      LAMINA_CHECK(transport_->Wait(*region_, conditions, {}).ok());
    }
    return static_cast<double>(RealClock().Now() - start) / kLooks / kIdlePeers;
  }

 private:
  // What the other side gives at the same call.
  std::string Exchange(const std::string& own) {
    LAMINA_CHECK(own.size() <= link_.descriptors[side_].size());
    std::memcpy(link_.descriptors[side_].data(), own.data(), own.size());
    link_.descriptor_bytes[side_] = own.size();
    Meet();
    const std::string other(link_.descriptors[1 - side_].data(), link_.descriptor_bytes[1 - side_]);
    Meet();
    return other;
  }

  void AwaitWord(uint32_t word, uint64_t value) {
    const std::array come = {SignalCondition{.word = word, .at_least = value}};
    LAMINA_CHECK(
        transport_->Wait(*region_, come, {.deadline = RealClock().Now() + kAwaitMax}).ok());
  }

  // Waits as AwaitWord() does, and reads memory meanwhile.
  void ReadUntil(uint32_t word, uint64_t value) {
    const Nanos deadline = RealClock().Now() + kAwaitMax;
    while (region_->LoadSignal(word) < value) {
      LAMINA_CHECK(RealClock().Now() < deadline);
      uint64_t sum = 0;
      for (size_t i = 0; i < kReadWords; i += kWordsOfLine) {
        sum += read_[read_at_ + i];
      }
      LAMINA_CHECK(sum == kReadWords / kWordsOfLine);  // So that nothing is left out.
      read_at_ = (read_at_ + kReadWords) % read_.size();
      link_.read_bytes.value.fetch_add(kReadWords * sizeof(uint64_t), std::memory_order_release);
      transport_->Progress();
    }
  }

  template <typename Send, typename Receive>
  double PingPong(int messages, const Send& send, const Receive& receive) {
    Meet();
    const Nanos start = RealClock().Now();
    for (int message = 0; message < messages; ++message) {
      if (side_ == 0) {
        send();
        receive();
      } else {
        receive();
        send();
      }
    }
    return static_cast<double>(RealClock().Now() - start) / messages / 2;
  }

  BareLink& link_;
  const size_t side_;
  const std::unique_ptr<Transport> transport_;
  const std::vector<std::byte> source_;
  const std::vector<uint64_t> read_;  // What a peer reads that does.
  size_t read_at_ = 0;                // Its next word.
  std::unique_ptr<Region> region_;
  std::unique_ptr<RemoteRegion> remote_;
  std::unique_ptr<UcpPeer> ucp_;  // Over ucx:// only.
  uint64_t step_ = 0;
  uint64_t bare_sent_ = 0;
  uint64_t bare_seen_ = 0;
  uint64_t sent_ = 0;
  uint64_t seen_ = 0;
  uint64_t streamed_ = 0;
  uint64_t walked_ = 0;  // A multiple of the size of messages.
};

// Nanoseconds to look at one of 64 idle words that lie `stride` words apart.
double BarePoll(size_t stride) {
  constexpr int kLooks = 200000;
  const std::vector<std::atomic<uint64_t>> words(kIdlePeers * stride);
  uint64_t sum = 0;
  const Nanos start = RealClock().Now();
  for (int look = 0; look < kLooks; ++look) {
    for (size_t word = 0; word < words.size(); word += stride) {
      sum += words[word].load(std::memory_order_acquire) >= 1 ? 1 : 0;
    }
  }
  LAMINA_CHECK(sum == 0);
  return static_cast<double>(RealClock().Now() - start) / kLooks / kIdlePeers;
}

int MessagesFor(size_t bytes, bool same_core, const Options& options) {
  if (options.messages > 0) {
    return options.messages;
  }
  // Beyond this host a message takes tens of microseconds.
  const int most = same_core || options.uri != "shm://" ? 2000 : 20000;
  return std::clamp(static_cast<int>((size_t{64} << 20) / bytes), 50, most);
}

nlohmann::json Measure(Side& side, size_t core_of_peer, bool same_core, const Options& options) {
  nlohmann::json rows = nlohmann::json::array();
  for (const size_t bytes : kSizes) {
    const int messages = MessagesFor(bytes, same_core, options);
    double bare = 1e18;
    double ours = 1e18;
    uint64_t allocated = 0;
    for (int round = 0; round < options.rounds; ++round) {
      bare = std::min(bare, side.BarePingPong(bytes, messages, same_core));
      const uint64_t before = AllocationsSoFar();
      ours = std::min(ours, side.TransportPingPong(bytes, messages));
      allocated += AllocationsSoFar() - before;
    }
    rows.push_back({{"cores", same_core ? "one" : "two"},
                    {"core_of_peer", core_of_peer},
                    {"bytes", bytes},
                    {"put_signal_ns", ours},
                    {"bare_ns", bare},
                    {"ratio", ours / bare},
                    {"allocations", allocated}});
  }
  return rows;
}

// In a round of a walk: no fewer than fill the window, so that a cache holds back little of what is
// written.
int WalkMessagesFor(size_t bytes, bool same_core, const Options& options) {
  return options.messages > 0 ? options.messages
                              : std::max(MessagesFor(bytes, same_core, options),
                                         static_cast<int>(options.window_mib * kMiB / bytes));
}

// Streams from memory that is in no cache, for the walk comes back to a place behind all others.
// The peer reads in every second one, unless it has no core of its own.
nlohmann::json Walk(Side& side, bool same_core, const Options& options) {
  // Each page of the target is there before the first measurement.
  side.Stream(kBytesMax, static_cast<int>(options.window_mib * kMiB / kBytesMax), /*walks=*/true);
  nlohmann::json rows = nlohmann::json::array();
  // From large to small, so that each begins at a multiple of its size.
  for (auto bytes = kStreamSizes.rbegin(); bytes != kStreamSizes.rend(); ++bytes) {
    const int messages = WalkMessagesFor(*bytes, same_core, options);
    double best = 0;
    StreamRates next_to_reads;
    for (int round = 0; round < options.rounds; ++round) {
      best = std::max(best, side.Stream(*bytes, messages, /*walks=*/true).put);
      if (!same_core) {
        const StreamRates rates =
            side.Stream(*bytes, messages, /*walks=*/true, PeerWork::kReadsMemory);
        next_to_reads = rates.put > next_to_reads.put ? rates : next_to_reads;
      }
    }
    rows.push_back({{"cores", same_core ? "one" : "two"},
                    {"walk_bytes", *bytes},
                    {"source_mib", options.source_mib},
                    {"window_mib", options.window_mib},
                    {"walk_bytes_per_second", best},
                    {"walk_next_to_reads_bytes_per_second", next_to_reads.put},
                    {"peer_reads_bytes_per_second", next_to_reads.read}});
  }
  return rows;
}

// Runs both sides, this process on core 0, the other on `core_of_peer`.
nlohmann::json RunPair(int core_of_peer, const Options& options) {
  void* memory = mmap(nullptr, sizeof(BareLink), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  LAMINA_CHECK(memory != MAP_FAILED);
  auto* link = new (memory) BareLink{};
  const bool same_core = core_of_peer == 0;
  const pid_t child = fork();
  LAMINA_CHECK(child >= 0);
  const size_t number = child == 0 ? 1 : 0;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  LAMINA_CHECK(PinThisThread({child == 0 ? core_of_peer : 0}));
  nlohmann::json rows;
  {
    Side side(*link, number, options);
    rows = Measure(side, static_cast<size_t>(core_of_peer), same_core, options);
    const double idle_poll = side.IdlePoll();
    rows.push_back({{"cores", same_core ? "one" : "two"}, {"idle_poll_ns_per_peer", idle_poll}});
    for (const size_t bytes : kStreamSizes) {
      double best = 0;
      for (int round = 0; round < options.rounds; ++round) {
        best = std::max(best, side.Stream(bytes, MessagesFor(bytes, same_core, options)).put);
      }
      rows.push_back({{"cores", same_core ? "one" : "two"},
                      {"stream_bytes", bytes},
                      {"stream_bytes_per_second", best}});
    }
    if (options.source_mib > 0) {
      for (nlohmann::json& row : Walk(side, same_core, options)) {
        rows.push_back(std::move(row));
      }
    }
  }
  if (child == 0) {
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  munmap(memory, sizeof(BareLink));
  return rows;
}

void Print(const nlohmann::json& rows) {
  std::printf("%-6s %9s %14s %10s %6s %12s\n", "cores", "bytes", "put+signal ns", "bare ns",
              "ratio", "allocations");
  for (const nlohmann::json& row : rows) {
    if (row.contains("bytes")) {
      std::printf("%-6s %9zu %14.0f %10.0f %6.2f %12zu\n", row["cores"].get<std::string>().c_str(),
                  row["bytes"].get<size_t>(), row["put_signal_ns"].get<double>(),
                  row["bare_ns"].get<double>(), row["ratio"].get<double>(),
                  row["allocations"].get<size_t>());
    } else {
      std::printf("%s\n", row.dump().c_str());
    }
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Put and signal between two processes, against a bare memcpy and cache line.");
  app.add_option("--transport", options.uri, "URI of the backend")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds of each figure; the best counts")
      ->capture_default_str();
  app.add_option("--messages", options.messages, "Messages in a round; 0: as many as take a while");
  app.add_option("--cores", options.cores, "Only \"one\" or \"two\" cores");
  app.add_option("--source-mib", options.source_mib,
                 "Also puts from place after place of so much memory; 0: none")
      ->check(CLI::Range(size_t{0}, kMiBMax))
      ->capture_default_str();
  app.add_option("--window-mib", options.window_mib,
                 "Where these go, to place after place: the peer's region")
      ->check(CLI::Range(size_t{1}, kMiBMax))
      ->capture_default_str();
  app.add_option("--json", options.json, "Write the rows to this file");
  if (const std::optional<int> status = ParseFlags(app, argc, argv)) {
    return *status;
  }

  nlohmann::json rows = nlohmann::json::array();
  for (const int core_of_peer : {1, 0}) {
    if (options.cores.empty() || (options.cores == "one") == (core_of_peer == 0)) {
      for (const nlohmann::json& row : RunPair(core_of_peer, options)) {
        rows.push_back(row);
      }
    }
  }
  rows.push_back({{"bare_poll_ns_own_lines", BarePoll(8)}, {"bare_poll_ns_packed", BarePoll(1)}});
  Print(rows);
  if (!options.json.empty()) {
    std::ofstream(options.json) << rows.dump(2) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) { return lamina::bench::Main(argc, argv); }
