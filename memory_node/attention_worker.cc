// SPDX-License-Identifier: Apache-2.0
#include "memory_node/attention_worker.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/kv_form.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/thread_beat.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "kernels/attention.h"
#include "memory_node/source_loop.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "plan/hybrid_slots.h"
#include "plan/slot_kinds.h"
#include "transport/link_probe.h"

namespace lamina::memory_node {
namespace {

// For all compute nodes to have measured their links, one after the other. Longer than each waits
// for an answer, so that it is they who say which link does not work.
constexpr Nanos kMeasuringMax = Seconds(60);

// Whether KvStream serves one of the paths.
bool SendsWholeSequences(const plan::AttentionPaths& paths) {
  return paths.Has(plan::AttentionPath::kFetch) || paths.Has(plan::AttentionPath::kRecompute) ||
         paths.Has(plan::AttentionPath::kHybrid);
}

}  // namespace

AttentionWorker::AttentionWorker(const Options& options, transport::Transport& transport,
                                 transport::Region& region, kernels::KvDevice& device,
                                 ThreadPool& pool, WorkerCounters& counters,
                                 std::unique_ptr<kernels::WindowChannel> channel)
    : epoch_(options.config, options.node, options.peer_deadline, transport, region,
             {.kv = device, .int8 = options.int8_device}, counters),
      checks_(epoch_),
      meter_(epoch_),
      feed_(epoch_, checks_, options.tails),
      parts_(epoch_),
      host_queries_(epoch_, checks_, feed_, meter_, parts_, pool) {
  epoch_.checks_data = options.checks_data;
  LAMINA_CHECK((options.int8_device != nullptr) ==
               epoch_.config.attention_paths.Has(plan::AttentionPath::kRemoteInt8));
  if (channel != nullptr) {
    device_queries_.emplace(epoch_, checks_, feed_, meter_, parts_, std::move(channel));
    sources_.push_back(&*device_queries_);
  }
  if (SendsWholeSequences(epoch_.config.attention_paths)) {
    LAMINA_CHECK(device.reads() != nullptr);
    LAMINA_CHECK(epoch_.config.activation_width == 0 || device.activations() != nullptr);
    kv_stream_.emplace(epoch_, feed_, meter_,
                       KvStream::Stored{.kv = *device.reads(),
                                        .activations = device.activations(),
                                        .int8 = device.int8() != nullptr});
    sources_.push_back(&*kv_stream_);
  }
  if (epoch_.config.attention_paths.Has(plan::AttentionPath::kSparse)) {
    LAMINA_CHECK(device.reads() != nullptr);
    sparse_stream_.emplace(epoch_, checks_, feed_, meter_, *device.reads(),
                           device.int8() != nullptr ? KvForm::kInt8 : KvForm::kBF16);
    sources_.push_back(&*sparse_stream_);
  }
  if (epoch_.config.attention_paths.Has(plan::AttentionPath::kStreaming)) {
    LAMINA_CHECK(device.reads() != nullptr);
    streaming_stream_.emplace(epoch_, feed_, meter_, *device.reads());
    sources_.push_back(&*streaming_stream_);
  }
  if (device.int8() != nullptr && (kv_stream_.has_value() || sparse_stream_.has_value())) {
    host_queries_.SetBeforeStore([this](const Lane& lane, uint32_t layer) -> absl::Status {
      if (kv_stream_.has_value()) {
        LAMINA_RETURN_IF_ERROR(kv_stream_->BeforeStore(lane, layer));
      }
      return sparse_stream_.has_value() ? sparse_stream_->BeforeStore(lane, layer)
                                        : absl::OkStatus();
    });
  }
  if (options.spill != nullptr) {
    spills_.emplace(epoch_, meter_, *options.spill, options.report_spill);
    spills_->SetEnded([this](uint64_t spill) { feed_.EndMove(spill); });
    feed_.SetMover(
        [this](const std::vector<plan::SlotMove>& moves) { return spills_->Take(moves); });
    sources_.push_back(&*spills_);
  }
  sources_.push_back(&host_queries_);
  feed_.SetSources(sources_);
}

// A transport may read the source of a put until the view of its target is gone.
AttentionWorker::~AttentionWorker() { epoch_.peers = {}; }

kernels::KvDeviceOptions AttentionWorker::DeviceOptions(const plan::EpochConfig& config,
                                                        uint32_t node, KvForm form,
                                                        uint32_t slots) {
  const uint32_t blocks =
      (config.sequence_tokens_max + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  // A row's spans, or its full blocks as aligned spans and the rest.
  const uint32_t items_of_row = std::max(plan::WindowShapeOf(config).spans_max,
                                         static_cast<uint32_t>(std::bit_width(blocks)) + 1);
  const plan::SlotKinds kinds(config.activation_share);
  const uint32_t others = plan::SlotsOfOthers(config, node);
  const uint32_t of_kinds = config.hybrid_slots.empty() ? slots : config.hybrid_slots[node];
  const bool int8 = form == KvForm::kInt8;
  return {.layers = plan::LayersOf(config, node),
          .arithmetic = config.attention.decode,
          .slots = int8 ? config.int8_tails * kInt8BlockTokens : others + kinds.KvOf(of_kinds),
          .context_tokens_max = config.sequence_tokens_max,
          .items_max = config.rows_max * items_of_row,
          .query_tokens_max = config.rows_max,
          .store_tokens_max = config.rows_max + config.chunk_tokens_max,
          .activation_width = plan::ActivationPartOf(config, node).count,
          .activation_slots = kinds.share() > 0 ? kinds.ActivationsOf(of_kinds) : slots,
          .int8_slots = int8 ? slots : 0,
          .slot_layout = (uint64_t{others} << 32) | kinds.share()};
}

// Who fetches has one compute node, so that each lane has one part (query_parts.h).
uint64_t AttentionWorker::SourceBytes(const plan::EpochConfig& config) {
  using plan::AttentionPath;
  const plan::AttentionPaths& paths = config.attention_paths;
  const uint64_t streams = (SendsWholeSequences(paths) ? 1 : 0) +
                           (paths.Has(AttentionPath::kSparse) ? 1 : 0) +
                           (paths.Has(AttentionPath::kStreaming) ? 1 : 0);
  const plan::WindowLayout layout(plan::WindowShapeOf(config));
  return config.lanes *
         (streams * 2 * plan::FetchWindows(layout).window_bytes() + layout.reply_window_bytes());
}

size_t AttentionWorker::device_reply_bytes() const {
  return parts_.count() * epoch_.layout.reply_window_bytes();
}

absl::Status AttentionWorker::UseDeviceMemory(absl::Span<std::byte> replies) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<QueryRows> rows, RowsInDeviceMemory(epoch_, replies));
  host_queries_.SetRows(std::move(rows));
  return absl::OkStatus();
}

void AttentionWorker::SetPeers(PeerRegions peers) { epoch_.peers = std::move(peers); }

void AttentionWorker::AddSource(WorkSource& source) {
  sources_.insert(sources_.begin(), &source);
  feed_.SetSources(sources_);
}

void AttentionWorker::Stop() {
  epoch_.abort.store(1, std::memory_order_release);
  if (device_queries_.has_value()) {
    device_queries_->Abort();
  }
}

absl::Status AttentionWorker::Run() {
  LAMINA_RETURN_IF_ERROR(epoch_.device.Begin());
  if (epoch_.int8_device != nullptr) {
    LAMINA_RETURN_IF_ERROR(epoch_.int8_device->Begin());
  }
  absl::Status served;
  for (WorkSource* source : sources_) {
    if (served = source->Open(); !served.ok()) {
      break;
    }
  }
  if (served.ok()) {
    served = Serve();
  }
  for (WorkSource* source : sources_) {
    source->Close();
  }
  return served;
}

absl::Status AttentionWorker::Serve() {
  if (absl::Status answered = AnswerLinks(); !answered.ok()) {
    return absl::IsCancelled(answered) ? absl::OkStatus() : control::TransportFault(answered);
  }
  return SourceLoop(epoch_, feed_, meter_, sources_).Run();
}

void AttentionWorker::RegisterArena() {
  const bool sends =
      kv_stream_.has_value() || sparse_stream_.has_value() || streaming_stream_.has_value();
  if (!sends || epoch_.device.int8() != nullptr || epoch_.device.reads()->memory().empty()) {
    return;
  }
  const absl::Status registered = epoch_.transport.RegisterSource(epoch_.device.reads()->memory(),
                                                                  transport::MemoryKind::kHost);
  epoch_.puts_arena = registered.ok();
  if (!registered.ok()) {
    LogWarning("K and V are copied before they are put: ", registered.message());
  }
}

// Compute nodes measure their links before they send anything else.
absl::Status AttentionWorker::AnswerLinks() {
  std::vector<transport::LinkAnswerer> answerers;
  for (uint32_t node = 0; node < epoch_.peers.compute.size(); ++node) {
    answerers.push_back({.peer = epoch_.peers.compute[node].get(),
                         .ask_word = epoch_.layout.query_probe_word(node),
                         .answer_word = epoch_.layout.memory_probe_word(epoch_.node)});
  }
  // Compute nodes measure one after the other.
  const size_t compute = epoch_.config.compute_nodes.size();
  const size_t links = compute * (compute + epoch_.config.memory_nodes.size());
  const Nanos most = kMeasuringMax + static_cast<Nanos>(links) * transport::kLinkMeasuringMax;
  size_t late = 0;
  const absl::Status status = transport::AnswerLinks(
      epoch_.transport, epoch_.region, answerers,
      {.deadline = RealClock().Now() + most, .abort = &epoch_.abort, .beat = &epoch_.counters.beat},
      late);
  if (!status.ok()) {
    const std::string& name = epoch_.config.compute_nodes[late];
    return control::Blame(
        absl::Status(status.code(), absl::StrCat("link to ", name, ": ", status.message())), name);
  }
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
