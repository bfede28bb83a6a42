// SPDX-License-Identifier: Apache-2.0
//
// Flows of data between hosts, for two_hosts_test.py.
//
//   transport_flow receive URI WORDS           one region that WORDS senders fill; prints its
//                                              descriptor, then for each line on stdin how many
//                                              messages came from each; until stdin ends
//   transport_flow send URI WORD DESCRIPTOR    sends messages without end, a few in flight, until
//                                              stdin ends or the receiver is gone
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

constexpr size_t kMessageBytes = 64 << 10;
constexpr uint32_t kInFlight = 8;

// What stands on stdin now: lines, or its end.
struct Input {
  size_t lines = 0;
  bool ended = false;
};

Input ReadInput() {
  pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, 0) <= 0) {
    return {};
  }
  std::array<char, 256> text;
  const ssize_t bytes = read(STDIN_FILENO, text.data(), text.size());
  Input input{.ended = bytes <= 0};
  for (ssize_t i = 0; i < bytes; ++i) {
    input.lines += text[static_cast<size_t>(i)] == '\n' ? 1 : 0;
  }
  return input;
}

int Receive(Transport& transport, uint32_t words) {
  const auto region =
      transport
          .CreateRegion({.name = "flow", .bytes = words * kMessageBytes, .signal_words = words})
          .value();
  std::printf("%s\n", absl::BytesToHexString(region->Descriptor()).c_str());
  std::fflush(stdout);
  for (Input input; !input.ended; input = ReadInput()) {
    transport.Progress();
    for (; input.lines > 0; --input.lines) {
      for (uint32_t word = 0; word < words; ++word) {
        std::printf("%llu ", static_cast<unsigned long long>(region->LoadSignal(word)));
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

int Send(Transport& transport, uint32_t word, const std::string& descriptor) {
  const std::vector<std::byte> source(kMessageBytes, std::byte{1});
  LAMINA_CHECK(transport.RegisterSource(source, MemoryKind::kHost).ok());
  const auto remote = transport.OpenRegion(descriptor, 0).value();
  for (uint64_t value = 1; !ReadInput().ended;) {
    transport.Progress();
    if (transport.Pending(*remote) >= kInFlight) {
      continue;
    }
    const SignalUpdate signal = {.word = word, .value = value};
    const absl::Status status = transport.Put(*remote, word * kMessageBytes, source, &signal);
    if (absl::IsUnavailable(status)) {
      return 0;
    }
    value += status.ok() ? 1 : 0;
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc < 4 || (mode != "receive" && mode != "send") || (mode == "send" && argc < 5)) {
    std::fputs("usage: transport_flow receive URI WORDS | send URI WORD DESCRIPTOR\n", stderr);
    return 2;
  }
  const auto transport = MakeTransport(argv[2]).value();
  const auto number = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  return mode == "receive" ? Receive(*transport, number)
                           : Send(*transport, number, absl::HexStringToBytes(argv[4]));
}

}  // namespace
}  // namespace lamina::transport

int main(int argc, char** argv) { return lamina::transport::Main(argc, argv); }
