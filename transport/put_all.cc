// SPDX-License-Identifier: Apache-2.0
#include "transport/put_all.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::transport {
namespace {

void Beat(const WaitOptions& options) {
  if (options.beat != nullptr) {
    options.beat->Raise();
  }
}

// Lets the backend work once while something is waited for.
absl::Status ProgressOnce(Transport& transport, const WaitOptions& options) {
  Beat(options);
  if (options.abort != nullptr && options.abort->load(std::memory_order_acquire) != 0) {
    return absl::CancelledError("stopped while a put waited");
  }
  if (RealClock().Now() > options.deadline) {
    return absl::DeadlineExceededError("the transport took no more puts");
  }
  transport.Progress();
  return absl::OkStatus();
}

}  // namespace

absl::Status PutAll(Transport& transport, RemoteRegion& target, size_t offset,
                    absl::Span<const std::byte> source, const SignalUpdate* signal,
                    const WaitOptions& options) {
  const size_t piece_max = transport.capabilities().put_bytes_max;
  while (true) {
    const absl::Span<const std::byte> piece = source.first(std::min(source.size(), piece_max));
    const bool is_last = piece.size() == source.size();
    const absl::Status put = transport.Put(target, offset, piece, is_last ? signal : nullptr);
    if (absl::IsResourceExhausted(put)) {
      LAMINA_RETURN_IF_ERROR(ProgressOnce(transport, options));
      continue;
    }
    LAMINA_RETURN_IF_ERROR(put);
    if (is_last) {
      return absl::OkStatus();
    }
    offset += piece.size();
    source.remove_prefix(piece.size());
  }
}

absl::Status DrainPuts(Transport& transport, RemoteRegion& target, const WaitOptions& options) {
  while (transport.Pending(target) > 0) {
    LAMINA_RETURN_IF_ERROR(ProgressOnce(transport, options));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> WaitInNaps(Transport& transport, const Region& region,
                                  absl::Span<const SignalCondition> conditions,
                                  const WaitOptions& options) {
  for (;;) {
    Beat(options);
    WaitOptions nap = options;
    nap.deadline = std::min(options.deadline, RealClock().Now() + ThreadBeat::kNapMost);
    absl::StatusOr<size_t> ready = transport.Wait(region, conditions, nap);
    if (!absl::IsDeadlineExceeded(ready.status()) || nap.deadline == options.deadline) {
      return ready;
    }
  }
}

absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegionOf(Transport& transport,
                                                           absl::string_view descriptor,
                                                           uint64_t epoch, RegionSize least) {
  LAMINA_ASSIGN_OR_RETURN(auto region, transport.OpenRegion(descriptor, epoch));
  if (region->size_bytes() < least.bytes || region->signal_words() < least.signal_words) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a peer's windows are too small for the largest batch: ", FormatBytes(region->size_bytes()),
        " and ", region->signal_words(), " signal words, needed are ", FormatBytes(least.bytes),
        " and ", least.signal_words,
        "; run one version of Lamina on all nodes, or lower limits.running_max or "
        "prefill.chunk_tokens"));
  }
  return region;
}

absl::StatusOr<std::vector<std::unique_ptr<RemoteRegion>>> OpenRegions(
    Transport& transport, const std::vector<std::string>& descriptors, uint64_t epoch,
    RegionSize least, size_t* failed, ThreadBeat* beat) {
  std::vector<std::unique_ptr<RemoteRegion>> regions;
  for (const std::string& descriptor : descriptors) {
    if (beat != nullptr) {
      beat->Raise();
    }
    if (failed != nullptr) {
      *failed = regions.size();
    }
    LAMINA_ASSIGN_OR_RETURN(auto region, OpenRegionOf(transport, descriptor, epoch, least));
    regions.push_back(std::move(region));
  }
  return regions;
}

}  // namespace lamina::transport
