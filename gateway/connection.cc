// SPDX-License-Identifier: Apache-2.0
#include "gateway/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/trace_context.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// After an answer that came before the whole request: so that the client can still read it.
constexpr auto kLingerTime = std::chrono::seconds(2);
constexpr std::chrono::milliseconds kDrainingIdleTime = std::chrono::seconds(1);
constexpr size_t kLingerBytesMax = 4 << 20;
constexpr char kNoRoute[] = "other";  // The path is not known yet.
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

absl::string_view ReasonOf(int status) {
  switch (status) {
    case 408:
      return "Request Timeout";
    case 499:
      return "Client Closed Request";
    default:
      return View(http::obsolete_reason(static_cast<http::status>(status)));
  }
}

absl::Status HeadTooLarge() {
  return HttpError(
      431, "headers_too_large",
      absl::StrCat("the head of the request has more than ", Connection::kHeadBytesMax, " bytes"));
}

absl::Status ParseError(const error_code& error) {
  if (error == http::error::header_limit) {
    return HeadTooLarge();
  }
  if (error == http::error::body_limit) {
    return HttpError(413, "body_too_large", "the body of the request is too large");
  }
  return HttpError(400, "bad_http", absl::StrCat("this is not HTTP/1.1: ", error.message()));
}

// What is wrong with how the head says where the body ends; empty if nothing. A coding that is
// skipped would leave the body to be read as the next request.
std::string FramingProblem(const http::header<true>& head) {
  const auto [first, last] = head.equal_range(http::field::transfer_encoding);
  if (first == last) {
    return "";
  }
  if (std::next(first) != last || !absl::EqualsIgnoreCase(View(first->value()), "chunked")) {
    return "the only Transfer-Encoding that is read is chunked, given once";
  }
  if (head.version() < 11) {
    return "Transfer-Encoding needs HTTP/1.1";
  }
  return head.count(http::field::content_length) == 0
             ? ""
             : "Transfer-Encoding and Content-Length exclude each other";
}

// The path and the query of a target. In absolute form, which proxies are sent and servers take
// (RFC 9112, 3.2.2), they stand behind the authority.
std::string PathAndQuery(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (absl::StartsWithIgnoreCase(target, scheme)) {
      const size_t path = target.find_first_of("/?", scheme.size());
      const absl::string_view rest = path == absl::string_view::npos ? "" : target.substr(path);
      return absl::StrCat(absl::StartsWith(rest, "/") ? "" : "/", rest);
    }
  }
  return std::string(target);
}

}  // namespace

Connection::Connection(boost::asio::io_context& io, std::unique_ptr<ByteStream> stream,
                       const Settings& settings, RequestRouter& router, ClosedFunction closed)
    : settings_(settings),
      router_(router),
      closed_(std::move(closed)),
      stream_(std::move(stream)),
      io_(io) {}

void Connection::Start() {
  state_ = State::kReading;
  SetDeadline(settings_.request_time);
  router_.metrics().AddConnections(1);
  stream_->Handshake([self = shared_from_this()](const error_code& error, size_t) {
    if (self->state_ == State::kClosed) {
      return;
    }
    if (error) {
      self->Close();
    } else {
      self->NextRequest();
    }
  });
}

void Connection::Drain() {
  draining_ = true;
  if (state_ == State::kIdle) {
    Close();
  }
}

// --- Reading ---

void Connection::NextRequest() {
  parser_.emplace();
  parser_->header_limit(kHeadBytesMax);
  parser_->body_limit(settings_.body_bytes_max);
  parser_->eager(true);
  head_seen_ = false;
  taken_bytes_ = 0;
  head_only_ = false;
  request_ = {};
  route_.clear();
  request_headers_.clear();
  state_ = State::kIdle;
  idle_since_ = std::chrono::steady_clock::now();
  // One that comes while we drain may still ask once, and is told.
  SetDeadline(draining_ ? std::min(settings_.idle_time, kDrainingIdleTime) : settings_.idle_time);
  if (draining_ && served_ && unparsed_.empty()) {
    Close();
  } else if (unparsed_.empty()) {
    Read();
  } else {
    Parse();
  }
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) {
    return;
  }
  reading_ = true;
  stream_->ReadSome(absl::MakeSpan(read_buffer_),
                    [self = shared_from_this()](const error_code& error, size_t bytes) {
                      self->reading_ = false;
                      self->OnRead(error, bytes);
                    });
}

void Connection::OnRead(const error_code& error, size_t bytes) {
  if (state_ == State::kClosed) {
    return;
  }
  // A client may end its side behind its last request: an answer that is there goes out first, and
  // requests behind it that came whole are answered too. The next read says again that it ended.
  if (error == boost::asio::error::eof && state_ == State::kAnswering && answer_ended_) {
    return;
  }
  if (error || bytes == 0) {
    Close();
    return;
  }
  router_.metrics().CountReceived(bytes);
  if (state_ == State::kLingering) {
    lingered_ += bytes;
    if (lingered_ > kLingerBytesMax) {
      Close();
    } else {
      Read();
    }
    return;
  }
  unparsed_.append(read_buffer_.data(), bytes);
  if (state_ == State::kAnswering) {
    if (unparsed_.size() < kAheadBytesMax) {
      Read();
    }
    return;
  }
  Parse();
}

void Connection::Parse() {
  if (state_ == State::kIdle) {
    // Some clients send an empty line behind a body.
    unparsed_.erase(0, unparsed_.find_first_not_of("\r\n"));
    if (unparsed_.empty()) {
      Read();
      return;
    }
    state_ = State::kReading;
    SetDeadline(settings_.request_time);
  }
  error_code error;
  const size_t taken = parser_->put(boost::asio::buffer(unparsed_.data(), unparsed_.size()), error);
  unparsed_.erase(0, taken);
  taken_bytes_ += taken;
  if (error == http::error::need_more) {
    error = {};
  }
  // Where a Content-Length is too large the parser has read the head, and does not call it done.
  const bool head_came =
      !head_seen_ && (parser_->is_header_done() || error == http::error::body_limit);
  if (head_came && !OnHead()) {
    return;
  }
  if (error) {
    RefuseRequest(ParseError(error));
    return;
  }
  if (head_came && !parser_->is_done() && chunked_ &&
      absl::EqualsIgnoreCase(View(parser_->get()[http::field::expect]), "100-continue")) {
    Append(kContinue);
  }
  if (parser_->is_done()) {
    OnRequest();
  } else if (!head_seen_ && taken_bytes_ + unparsed_.size() > kHeadBytesMax) {
    // The parser's own limit is on what it has not taken, and it takes fields as they come.
    RefuseRequest(HeadTooLarge());
  } else if (head_seen_ && unparsed_.size() > kHeadBytesMax) {
    // The parser takes a body's data as it comes: what is left is an extension or the trailer.
    RefuseRequest(HttpError(431, "headers_too_large",
                            absl::StrCat("the extension of a chunk, or the trailer, has more than ",
                                         kHeadBytesMax, " bytes")));
  } else {
    Read();
  }
}

// Returns false when the request has been refused.
bool Connection::OnHead() {
  head_seen_ = true;
  const auto& head = parser_->get();
  const std::string target = PathAndQuery(View(head.target()));
  const size_t question = target.find('?');
  request_.method = std::string(View(head.method_string()));
  request_.path = target.substr(0, question);
  if (question != std::string::npos) {
    request_.query = target.substr(question + 1);
  }
  request_.authorization = std::string(View(head[http::field::authorization]));
  // Where Anthropic's clients send the key.
  if (const auto key = head.find("x-api-key");
      request_.authorization.empty() && key != head.end()) {
    request_.authorization = absl::StrCat("Bearer ", View(key->value()));
  }
  request_.content_type = std::string(View(head[http::field::content_type]));
  request_.origin = std::string(View(head[http::field::origin]));
  request_.asked_headers = std::string(View(head[http::field::access_control_request_headers]));
  request_.policy = std::string(View(head["x-lamina-policy"]));
  request_.kv = std::string(View(head["x-lamina-kv"]));
  request_.request_id = std::string(View(head[kRequestIdHeader]));
  request_.trace_parent = std::string(View(head[kTraceParentHeader]));
  const auto [first, last] = head.equal_range(kTraceStateHeader);
  for (auto field = first; field != last; ++field) {
    absl::StrAppend(&request_.trace_state, request_.trace_state.empty() ? "" : ",",
                    View(field->value()));
  }
  head_only_ = head.method() == http::verb::head;
  chunked_ = head.version() >= 11;
  // A client of HTTP/1.0 takes the end of the connection for the end of its answer.
  close_after_ = head.version() < 11 || !head.keep_alive();
  request_headers_ = router_.HeadersFor(request_);
  route_ = router_.RouteOf(request_.path);
  if (const std::string problem = FramingProblem(head); !problem.empty()) {
    RefuseRequest(HttpError(400, "bad_http", problem));
    return false;
  }
  if (std::optional<HttpResponse> refusal = router_.Refuse(request_); refusal.has_value()) {
    if (parser_->is_done()) {
      parser_.reset();
      state_ = State::kAnswering;
      deadline_ = TimePoint::max();
      Respond(*std::move(refusal));
      Read();
    } else {
      RefuseRequest(*std::move(refusal));
    }
    return false;
  }
  return true;
}

void Connection::OnRequest() {
  state_ = State::kAnswering;
  deadline_ = TimePoint::max();
  last_write_ = std::chrono::steady_clock::now();
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  handler_ = router_.Handle(std::exchange(request_, {}), *this);
  // Nothing is expected, but this is how a client is seen to go.
  Read();
}

// Answers without having read the whole request, which ends the connection.
void Connection::RefuseRequest(HttpResponse response) {
  state_ = State::kAnswering;
  deadline_ = TimePoint::max();
  parser_.reset();
  close_after_ = true;
  linger_after_ = true;
  Respond(std::move(response));
}

void Connection::RefuseRequest(const absl::Status& status) {
  RefuseRequest(router_.ErrorOf(request_.path, status));
}

// --- Answering ---

void Connection::Respond(HttpResponse response) {
  const bool close = close_after_ || draining_;
  close_after_ = close;
  std::string head = absl::StrCat(
      "HTTP/1.1 ", response.status, " ", ReasonOf(response.status),
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\n");
  // 204 has no body, and must not say how long it is.
  if (response.status != 204) {
    absl::StrAppend(&head, "Content-Type: ", response.content_type,
                    "\r\nContent-Length: ", response.body.size(), "\r\n");
  }
  for (const auto* list : {&request_headers_, &response.headers}) {
    for (const auto& [name, value] : *list) {
      absl::StrAppend(&head, name, ": ", value, "\r\n");
    }
  }
  absl::StrAppend(&head, close ? "Connection: close\r\n\r\n" : "\r\n");
  answer_ended_ = true;
  router_.metrics().CountAnswer(route_.empty() ? kNoRoute : route_, response.status,
                                response.error_code);
  waiting_ += head;
  Append(head_only_ ? "" : response.body);
}

void Connection::StartStream(const HttpHeaders& headers) {
  streaming_ = true;
  router_.metrics().AddStreams(1);
  router_.metrics().CountAnswer(route_, 200, "");
  close_after_ = close_after_ || draining_ || !chunked_;
  std::string head = absl::StrCat(
      "HTTP/1.1 200 OK\r\nDate: ",
      absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
      "X-Accel-Buffering: no\r\n");
  for (const HttpHeaders* list : {&std::as_const(request_headers_), &headers}) {
    for (const auto& [name, value] : *list) {
      absl::StrAppend(&head, name, ": ", value, "\r\n");
    }
  }
  absl::StrAppend(&head, chunked_ ? "Transfer-Encoding: chunked\r\n" : "",
                  close_after_ ? "Connection: close\r\n\r\n" : "\r\n");
  Append(head);
}

void Connection::Write(absl::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  last_write_ = std::chrono::steady_clock::now();
  if (chunked_) {
    Append(absl::StrCat(absl::Hex(bytes.size()), "\r\n", bytes, "\r\n"));
  } else {
    Append(bytes);
  }
}

void Connection::EndStream() {
  answer_ended_ = true;
  if (chunked_) {
    Append("0\r\n\r\n");
  } else if (pending_bytes() == 0) {
    boost::asio::post(io_, [self = shared_from_this()] { self->Answered(); });
  }
}

void Connection::Append(absl::string_view bytes) {
  if (state_ == State::kClosed) {
    return;
  }
  waiting_.append(bytes.data(), bytes.size());
  if (writing_.empty()) {
    WriteMore();
  }
}

void Connection::WriteMore() {
  if (written_ == writing_.size()) {
    writing_.clear();
    writing_.swap(waiting_);
    written_ = 0;
  }
  write_began_ = std::chrono::steady_clock::now();
  stream_->WriteSome(absl::string_view(writing_).substr(written_),
                     [self = shared_from_this()](const error_code& error, size_t bytes) {
                       self->OnWritten(error, bytes);
                     });
}

void Connection::OnWritten(const error_code& error, size_t bytes) {
  if (state_ == State::kClosed) {
    return;
  }
  if (error) {
    Close();
    return;
  }
  written_ += bytes;
  router_.metrics().CountSent(bytes);
  if (pending_bytes() > 0) {
    WriteMore();
    return;
  }
  writing_.clear();
  written_ = 0;
  if (answer_ended_) {
    Answered();
  } else if (handler_ != nullptr) {
    handler_->OnDrained();
  }
}

void Connection::Answered() {
  if (state_ != State::kAnswering) {
    return;
  }
  CountEnd(/*gone=*/false);
  handler_ = nullptr;
  answer_ended_ = false;
  served_ = true;
  // A burst of an earlier answer must not be kept for as long as the client is.
  writing_.shrink_to_fit();
  waiting_.shrink_to_fit();
  if (linger_after_) {
    Linger();
  } else if (close_after_) {
    stream_->ShutDownWrites();
    Close();
  } else {
    NextRequest();
  }
}

// --- The end ---

void Connection::Linger() {
  state_ = State::kLingering;
  SetDeadline(kLingerTime);
  stream_->ShutDownWrites();
  Read();
}

void Connection::SetDeadline(std::chrono::milliseconds time) {
  deadline_ = std::chrono::steady_clock::now() + time;
}

void Connection::Tick(TimePoint now) {
  if (!writing_.empty() && now - write_began_ > settings_.write_time) {
    Close();
  } else if (now > deadline_) {
    OnDeadline();
  } else if (state_ == State::kAnswering && handler_ != nullptr && !answer_ended_ &&
             now - last_write_ >= settings_.keep_alive_time) {
    last_write_ = now;
    handler_->OnSilence();
  }
}

void Connection::OnDeadline() {
  // A connection on which a request has begun is told why it ends.
  if (state_ == State::kReading && parser_.has_value()) {
    RefuseRequest(HttpError(408, "request_timeout", "the request did not arrive in time"));
  } else {
    Close();
  }
}

void Connection::CountEnd(bool gone) {
  GatewayMetrics& metrics = router_.metrics();
  const bool streamed = std::exchange(streaming_, false);
  if (streamed) {
    metrics.AddStreams(-1);
  }
  if (gone && streamed) {
    metrics.CountBrokenStream("client_gone");
  } else if (gone && handler_ != nullptr) {
    metrics.CountGone(route_);
  }
}

void Connection::Close() {
  if (std::exchange(state_, State::kClosed) == State::kClosed) {
    return;
  }
  router_.metrics().AddConnections(-1);
  CountEnd(/*gone=*/!answer_ended_);
  if (const std::shared_ptr<RequestHandler> handler = std::exchange(handler_, nullptr);
      handler != nullptr) {
    handler->OnGone();
  }
  stream_->Close();
  closed_(shared_from_this());
}

}  // namespace lamina::gateway
