// SPDX-License-Identifier: Apache-2.0
//
// Connection: HTTP/1.1 on one accepted connection: reads a request, has it answered, and reads the
// next. A request is read whole before it is answered; while it is, one read waits for the client
// to go away.
//
// Threading: the gateway's. Ownership: itself, until it is closed.
// Limits:    one request at a time; its head, a chunk's extension and the trailer kHeadBytesMax
//            each; its body Settings::body_bytes_max; what a client sends ahead, kAheadBytesMax. A
//            request must arrive whole in request_time; a client must take something of what waits
//            for it within write_time.

#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gateway/byte_stream.h"
#include "gateway/gateway_metrics.h"
#include "gateway/response_writer.h"

namespace lamina::gateway {

struct HttpRequest {
  std::string method;
  std::string path;  // Without the query.
  std::string query;
  std::string authorization;
  std::string content_type;
  std::string origin;
  std::string asked_headers;  // Field Access-Control-Request-Headers.
  std::string policy;         // Field x-lamina-policy.
  std::string kv;             // Field x-lamina-kv.
  std::string request_id;     // Field x-request-id.
  std::string trace_parent;   // Field traceparent.
  std::string trace_state;    // All fields tracestate, which are one list.
  std::string body;
};

// Answers requests.
class RequestRouter {
 public:
  virtual ~RequestRouter() = default;
  // When the head is there and the body is not: what can be refused without reading on.
  virtual std::optional<HttpResponse> Refuse(const HttpRequest& head) = 0;
  // What a request for `path` is told of an error, in the form of its API. Empty: the head did not
  // come.
  virtual HttpResponse ErrorOf(const std::string& path, const absl::Status& status) const = 0;
  // Headers for every response to the request. Gives it a request_id if it has none.
  virtual std::vector<std::pair<std::string, std::string>> HeadersFor(HttpRequest& head) = 0;
  // The name that requests of `path` are counted under.
  virtual std::string RouteOf(const std::string& path) const = 0;
  virtual GatewayMetrics& metrics() = 0;
  // Answers through `writer`, at once or later; a later answer has a handler.
  virtual std::shared_ptr<RequestHandler> Handle(HttpRequest request, ResponseWriter& writer) = 0;
};

class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  static constexpr uint32_t kHeadBytesMax = 16 << 10;
  static constexpr size_t kAheadBytesMax = 64 << 10;

  struct Settings {
    uint64_t body_bytes_max = 4 << 20;
    std::chrono::milliseconds request_time = std::chrono::seconds(30);
    std::chrono::milliseconds idle_time = std::chrono::seconds(75);
    std::chrono::milliseconds write_time = std::chrono::seconds(30);
    std::chrono::milliseconds keep_alive_time = std::chrono::seconds(10);
  };
  using ClosedFunction = std::function<void(const std::shared_ptr<Connection>& connection)>;

  // `settings` and `router` must outlive it. `closed` is called once.
  Connection(boost::asio::io_context& io, std::unique_ptr<ByteStream> stream,
             const Settings& settings, RequestRouter& router, ClosedFunction closed);

  using TimePoint = std::chrono::steady_clock::time_point;

  void Start();
  // Looks after the times; called often.
  void Tick(TimePoint now);
  // Closes now if no request is in hand, else after its answer.
  void Drain();
  // Since when it waits for the first byte of a request; nothing while one is in hand.
  std::optional<TimePoint> idle_since() const {
    return state_ == State::kIdle ? std::optional(idle_since_) : std::nullopt;
  }
  // Closes now, for another connection's sake or the server's end. What it was asked gets no
  // answer.
  void GiveWay() { Close(); }

  void Respond(HttpResponse response) override;
  void StartStream(const HttpHeaders& headers) override;
  void Write(absl::string_view bytes) override;
  void EndStream() override;
  size_t pending_bytes() const override { return waiting_.size() + writing_.size() - written_; }

 private:
  enum class State : uint8_t { kIdle, kReading, kAnswering, kLingering, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void NextRequest();
  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void Parse();
  bool OnHead();
  void OnRequest();
  void RefuseRequest(HttpResponse response);
  void RefuseRequest(const absl::Status& status);
  void Answered();
  // Counts how the answer ended: by itself, or because the client is gone.
  void CountEnd(bool gone);

  void Append(absl::string_view bytes);
  void WriteMore();
  void OnWritten(const boost::system::error_code& error, size_t bytes);

  void SetDeadline(std::chrono::milliseconds time);
  void OnDeadline();
  void Linger();
  void Close();

  const Settings& settings_;
  RequestRouter& router_;
  ClosedFunction closed_;
  std::unique_ptr<ByteStream> stream_;
  boost::asio::io_context& io_;
  TimePoint deadline_ = TimePoint::max();  // Deadline of the present state.
  TimePoint idle_since_;                   // Set in kIdle.
  TimePoint write_began_;                  // When the write under way began.
  TimePoint last_write_;                   // Set while answering.

  State state_ = State::kIdle;
  std::optional<Parser> parser_;
  bool head_seen_ = false;
  size_t taken_bytes_ = 0;  // Bytes of this request that the parser took.
  bool reading_ = false;
  std::string unparsed_;
  std::array<char, 8 << 10> read_buffer_;

  HttpRequest request_;
  std::string route_;
  std::shared_ptr<RequestHandler> handler_;
  HttpHeaders request_headers_;
  bool head_only_ = false;  // The method was HEAD.
  bool chunked_ = false;
  bool answer_ended_ = false;
  bool streaming_ = false;
  bool close_after_ = false;
  bool linger_after_ = false;
  bool draining_ = false;
  bool served_ = false;  // It has answered a request.

  std::string waiting_;
  std::string writing_;
  size_t written_ = 0;  // Bytes of writing_ that are out.
  size_t lingered_ = 0;
};

}  // namespace lamina::gateway
