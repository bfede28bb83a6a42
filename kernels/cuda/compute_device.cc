// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/compute_device.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/chunk_attention.h"
#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/kv_device.h"
#include "kernels/cuda/row_sampler.h"
#include "kernels/cuda/stream_kv_device.h"
#include "kernels/cuda/window_channel.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kPieceAlignment = 256;  // As MemoryArena aligns them.

absl::StatusOr<Buffer> BufferOf(ArenaKind kind, size_t bytes) {
  LAMINA_ASSIGN_OR_RETURN(MemoryArena arena, MemoryArena::Create(kind, bytes));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const data, arena.Take<std::byte>(bytes));
  return Buffer{
      .data = data, .bytes = bytes, .owner = std::make_shared<MemoryArena>(std::move(arena))};
}

class CudaComputeDevice final : public ComputeDevice {
 public:
  CudaComputeDevice(const CudaComputeOptions& options, DeviceInfo info, Stream stream,
                    MemoryArena workspace)
      : options_(options),
        info_(std::move(info)),
        name_(absl::StrCat("cuda:", info_.index, " ", info_.name)),
        stream_(std::move(stream)),
        workspace_(std::move(workspace)) {}

  absl::Status MakeDense() {
    CudaDenseOptions dense = options_.dense;
    dense.launches = DescribeLaunches(info_);
    LAMINA_ASSIGN_OR_RETURN(dense_, MakeCudaDense(dense, workspace_, stream_));
    return absl::OkStatus();
  }

  const std::string& name() const override { return name_; }
  bool is_host() const override { return false; }
  Dense& dense() override { return *dense_; }

  absl::Status Begin() override {
    LAMINA_RETURN_IF_ERROR(OpenDevice(info_.index).status());
    dense_->Check().IgnoreError();
    failure_ = absl::OkStatus();
    return stream_.Synchronize();
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    LAMINA_ASSIGN_OR_RETURN(Buffer buffer, BufferOf(ArenaKind::kDevice, bytes));
    LAMINA_RETURN_IF_ERROR(FillAsync(buffer.data, 0, bytes, stream_));
    return buffer;
  }

  absl::StatusOr<Buffer> AllocateHost(size_t bytes) override {
    LAMINA_ASSIGN_OR_RETURN(Buffer buffer, BufferOf(ArenaKind::kPinnedHost, bytes));
    if (bytes > 0) {
      std::memset(buffer.data, 0, bytes);
    }
    return buffer;
  }

  void CopyRows(const RowsCopy& copy) override {
    Note(CopyRowsAsync(copy.to, copy.from,
                       {.row_bytes = copy.row_bytes,
                        .rows = copy.rows,
                        .to_stride = copy.to_stride,
                        .from_stride = copy.from_stride},
                       stream_));
  }

  absl::Status Synchronize() override {
    const absl::Status waited = stream_.Synchronize();
    absl::Status first = TakeFailure();
    first.Update(waited);
    return Named(first);
  }

  absl::StatusOr<std::unique_ptr<ChunkAttention>> MakeChunkAttention(
      const ChunkAttentionOptions& options) override {
    return MakeCudaChunkAttention(options, options_.partial_bytes_max, info_, stream_);
  }

  absl::StatusOr<std::unique_ptr<KvDevice>> MakeKvDevice(const KvDeviceOptions& options) override {
    return MakeStreamKvDevice(options, options_.partial_bytes_max, info_, stream_);
  }

  absl::StatusOr<double> MeasureReads() override { return MeasureReadBandwidth(info_.index); }

  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work) override {
    const absl::StatusOr<double> seconds = SecondsOn(stream_, work);
    LAMINA_RETURN_IF_ERROR(Named(seconds.status()));
    LAMINA_RETURN_IF_ERROR(Synchronize());  // Copies and replays note what failed of them.
    return seconds;
  }

  absl::StatusOr<std::unique_ptr<RowSampler>> MakeSampler(
      const RowSamplerOptions& options) override {
    return MakeCudaRowSampler(options, stream_);
  }

  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) override {
    const std::vector<const Stream*> streams(options.lanes, &stream_);
    absl::StatusOr<std::unique_ptr<WindowChannel>> channel =
        MakeCudaWindowChannel(options, streams);
    LAMINA_RETURN_IF_ERROR(Named(channel.status()));
    return channel;
  }

  absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(absl::FunctionRef<void()> work) override {
    LAMINA_RETURN_IF_ERROR(Synchronize());
    absl::StatusOr<Graph> graph = Graph::Capture(stream_, [&] {
      work();
      return TakeFailure();
    });
    LAMINA_RETURN_IF_ERROR(Named(graph.status()));
    return std::make_unique<CudaCapturedGraph>(*std::move(graph), *this);
  }

 private:
  class CudaCapturedGraph final : public CapturedGraph {
   public:
    CudaCapturedGraph(Graph graph, CudaComputeDevice& device)
        : graph_(std::move(graph)), device_(device) {}
    void Replay() override { device_.Note(graph_.Launch(device_.stream_)); }

   private:
    const Graph graph_;
    CudaComputeDevice& device_;
  };

  void Note(absl::Status status) {
    if (failure_.ok()) {
      failure_ = std::move(status);
    }
  }

  // The first thing noted, and forgets it.
  absl::Status TakeFailure() {
    absl::Status first = dense_->Check();
    first.Update(std::exchange(failure_, absl::OkStatus()));
    return first;
  }

  absl::Status Named(const absl::Status& status) const {
    return status.ok() ? status
                       : absl::Status(status.code(), absl::StrCat(name_, ": ", status.message()));
  }

  const CudaComputeOptions options_;
  const DeviceInfo info_;
  const std::string name_;
  const Stream stream_;
  MemoryArena workspace_;
  std::unique_ptr<CudaDense> dense_;
  absl::Status failure_;  // The first of copies and replays.
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeDevice>> MakeCudaComputeDevice(
    const CudaComputeOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(DeviceInfo info, OpenDevice(options.index));
  LAMINA_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena workspace,
      MemoryArena::Create(ArenaKind::kDevice, options.dense.workspace_bytes + kPieceAlignment));
  auto device = std::make_unique<CudaComputeDevice>(options, std::move(info), std::move(stream),
                                                    std::move(workspace));
  LAMINA_RETURN_IF_ERROR(device->MakeDense());
  return device;
}

}  // namespace lamina::kernels::cuda
