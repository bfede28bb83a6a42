// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "client/convert_internal.h"
#include "client/generation_internal.h"
#include "client/resumption.h"
#include "common/clock.h"
#include "common/trace_context.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

namespace lamina::client::internal {
namespace {

std::chrono::system_clock::time_point After(Nanos wait) {
  return std::chrono::system_clock::now() + std::chrono::nanoseconds(wait);
}

class Generation;

// One call with a stream of the answer. It and its generation own each other until OnDone, which
// the library calls last.
class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  explicit Stream(std::shared_ptr<Generation> generation) : generation_(std::move(generation)) {}

  grpc::ClientContext& context() { return context_; }

  // One of these, then Go(), during which it may end and be deleted.
  void Generate(v1::Inference::Stub& stub, v1::GenerateRequest request) {
    request_ = std::move(request);
    stub.async()->Generate(&context_, &request_, this);
  }
  void Attach(v1::Inference::Stub& stub, v1::AttachRequest place) {
    place_ = std::move(place);
    stub.async()->Attach(&context_, &place_, this);
  }
  void Go() {
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  v1::GenerateRequest request_;
  v1::AttachRequest place_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  std::string journaled_id_;
  std::shared_ptr<Generation> generation_;
};

// Threading: Cancel() any thread; all else in threads of the library, one call at a time.
class Generation final : public std::enable_shared_from_this<Generation> {
 public:
  Generation(v1::Inference::Stub& stub, WaitingAnswers& waiting, const GenerateOptions& options,
             ChunkFunction on_chunk, DoneFunction on_done, const Cancellation& cancellation)
      : stub_(stub),
        waiting_(waiting),
        on_chunk_(std::move(on_chunk)),
        on_done_(std::move(on_done)),
        cancellation_(cancellation),
        resumption_(RealClock(), options.n.value_or(1)) {
    if (options.deadline > 0) {
      deadline_ = After(options.deadline);
    }
  }

  void Start(const GenerateOptions& options) {
    Stream* stream = nullptr;
    {
      const absl::MutexLock lock(&mu_);
      stream_ = NewStream();
      stream = stream_.get();
      FillMetadata(options, stream->context());
      stream->Generate(stub_, ToProto(options));
    }
    // The listener shares ownership, so that a late cancel still finds a generation.
    listener_ = cancellation_.Listen([self = shared_from_this()] { self->Cancel(); });
    stream->Go();
  }

  void TakeChunk(const Chunk& chunk) {
    EndWait();
    if (resumption_.Take(chunk)) {
      on_chunk_(chunk);
    }
  }

  // The stream that calls this is gone when it returns.
  void TakeEnd(const StreamEnd& end) {
    DropStream();
    const std::optional<absl::Status> status = resumption_.End(end);
    if (status.has_value()) {
      return Finish(*status);
    }
    if (!waits_) {
      waits_ = true;
      waiting_.Begin();
    }
    const auto alarm = std::make_shared<grpc::Alarm>();
    const absl::MutexLock lock(&mu_);
    // It is this generation's, and keeps what it calls: so that lets go of the generation.
    alarm->Set(After(resumption_.Pause()), [self = shared_from_this()](bool) mutable {
      std::exchange(self, nullptr)->Attach();
    });
    alarm_ = alarm;
    if (cancelled_) {
      alarm->Cancel();
    }
  }

 private:
  std::shared_ptr<Stream> NewStream() {
    auto stream = std::make_shared<Stream>(shared_from_this());
    if (deadline_.has_value()) {
      stream->context().set_deadline(*deadline_);
    }
    return stream;
  }

  void Attach() {
    std::shared_ptr<grpc::Alarm> alarm;
    Stream* stream = nullptr;
    {
      const absl::MutexLock lock(&mu_);
      alarm.swap(alarm_);
      if (!cancelled_) {
        stream_ = NewStream();
        stream = stream_.get();
        stream->Attach(stub_, ToProto(resumption_.place()));
      }
    }
    if (stream != nullptr) {
      stream->Go();
    } else {
      Finish(absl::CancelledError("cancelled by the client"));
    }
  }

  void Cancel() {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<grpc::Alarm> alarm;
    {
      const absl::MutexLock lock(&mu_);
      cancelled_ = true;
      stream = stream_;
      alarm = alarm_;
    }
    if (stream != nullptr) {
      stream->context().TryCancel();
    }
    if (alarm != nullptr) {
      alarm->Cancel();
    }
  }

  void EndWait() {
    if (std::exchange(waits_, false)) {
      waiting_.End();
    }
  }

  // The context keeps the channel. It goes before on_done lets the client's destructor return: were
  // this thread to drop the channel last, the library would join the thread with itself. Nor is a
  // stream kept by who lets it go.
  void DropStream() {
    std::shared_ptr<Stream> stream;
    const absl::MutexLock lock(&mu_);
    stream.swap(stream_);
  }

  void Finish(const absl::Status& status) {
    EndWait();
    cancellation_.Remove(listener_);
    on_done_(status);
  }

  v1::Inference::Stub& stub_;
  WaitingAnswers& waiting_;
  const ChunkFunction on_chunk_;
  const DoneFunction on_done_;
  const Cancellation cancellation_;
  std::optional<std::chrono::system_clock::time_point> deadline_;
  Resumption resumption_;
  bool waits_ = false;  // And is one of waiting_.
  uint64_t listener_ = 0;

  absl::Mutex mu_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);  // While a coordinator is waited for.
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

void Stream::OnReadInitialMetadataDone(bool ok) {
  if (!ok) {
    return;
  }
  const auto& metadata = context_.GetServerInitialMetadata();
  if (const auto id = metadata.find(kJournaledHeader); id != metadata.end()) {
    journaled_id_ = std::string(id->second.data(), id->second.size());
  }
}

void Stream::OnReadDone(bool ok) {
  if (!ok) {
    return;
  }
  generation_->TakeChunk(FromProto(response_));
  StartRead(&response_);
}

void Stream::OnDone(const grpc::Status& status) {
  StreamEnd end{.status = FromGrpc(status), .journaled_id = journaled_id_};
  const auto& trailers = context_.GetServerTrailingMetadata();
  const auto id = trailers.find(kRequestIdHeader);
  // A coordinator that ends a stream says which request it was of.
  end.broke_off = absl::IsUnavailable(end.status) && id == trailers.end();
  if (!end.status.ok() && id != trailers.end()) {
    end.status.SetPayload(kRequestIdHeader,
                          absl::Cord(absl::string_view(id->second.data(), id->second.size())));
  }
  const std::shared_ptr<Generation> generation = std::exchange(generation_, nullptr);
  generation->TakeEnd(end);  // Deletes this.
}

}  // namespace

void StartGeneration(v1::Inference::Stub& stub, WaitingAnswers& waiting,
                     const GenerateOptions& options, ChunkFunction on_chunk, DoneFunction on_done,
                     const Cancellation& cancellation) {
  std::make_shared<Generation>(stub, waiting, options, std::move(on_chunk), std::move(on_done),
                               cancellation)
      ->Start(options);
}

}  // namespace lamina::client::internal
