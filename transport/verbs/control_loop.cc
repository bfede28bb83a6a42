// SPDX-License-Identifier: Apache-2.0
//
// What the control thread itself runs: sockets and events.
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "transport/verbs/control_thread_internal.h"

namespace lamina::transport {
namespace {

// While views drain; otherwise it sleeps until something comes.
constexpr int kDrainPollMillis = 1;
// While the process has no descriptor for one more sender.
constexpr int kAcceptPauseMillis = 20;

}  // namespace

void ControlThread::Loop() {
  std::vector<pollfd> files;
  bool draining = false;
  bool accepts = true;
  for (;;) {
    // A negative number is passed over.
    files.assign({{.fd = wake_, .events = POLLIN, .revents = 0},
                  {.fd = accepts ? listener_.socket.fd() : -1, .events = POLLIN, .revents = 0},
                  {.fd = local_.context->async_fd, .events = POLLIN, .revents = 0}});
    {
      const std::lock_guard lock(mutex_);
      for (const auto& inbound : inbound_) {
        files.push_back({.fd = inbound->socket.fd(), .events = POLLIN, .revents = 0});
      }
      for (const auto& link : links_) {
        const int fd = link->gone.load() ? -1 : link->socket.fd();
        files.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      }
    }
    const int most = PollMillis(draining);
    const bool pauses = !accepts && (most < 0 || most > kAcceptPauseMillis);
    poll(files.data(), files.size(), pauses ? kAcceptPauseMillis : most);

    const std::lock_guard lock(mutex_);
    if (stop_) {
      return;
    }
    uint64_t drop = 0;
    static_cast<void>(read(wake_, &drop, sizeof drop) == sizeof drop);
    accepts = Accept();
    ReadEvents();
    for (const auto& inbound : inbound_) {
      Read(*inbound);
    }
    EndSilent();
    for (const auto& link : links_) {
      if (!link->gone.load()) {
        Read(*link);
      }
    }
    draining = SendDrained();
    RemoveEnded();
    FreeRegions();
    changed_.notify_all();
  }
}

bool ControlThread::Accept() {
  for (;;) {
    auto [socket, out_of_files] = AcceptPeer(listener_.socket);
    if (socket.fd() < 0) {
      return !out_of_files;
    }
    if (inbound_.size() < limits_.inbound_max) {
      inbound_.push_back(
          std::make_unique<Inbound>(Inbound{.socket = std::move(socket),
                                            .challenge = MakeChallenge(),
                                            .hello_due = RealClock().Now() + limits_.hello_wait,
                                            .views = InboundViews(limits_.views_max)}));
      inbound_.back()->ended = !inbound_.back()->socket.Send(inbound_.back()->challenge);
    }
  }
}

// How long poll() may sleep: until the first hello is due; -1 is until something comes.
int ControlThread::PollMillis(bool draining) {
  if (draining) {
    return kDrainPollMillis;
  }
  const std::lock_guard lock(mutex_);
  Nanos due = 0;
  for (const auto& inbound : inbound_) {
    if (inbound->queue == nullptr && (due == 0 || inbound->hello_due < due)) {
      due = inbound->hello_due;
    }
  }
  if (due == 0) {
    return -1;
  }
  const Nanos left = std::max<Nanos>(due - RealClock().Now(), 0);
  return static_cast<int>(left / Millis(1)) + 1;
}

// Anybody can connect and say nothing. That takes a descriptor and a place, which senders need.
void ControlThread::EndSilent() {
  const Nanos now = RealClock().Now();
  for (const auto& inbound : inbound_) {
    inbound->ended |= inbound->queue == nullptr && now >= inbound->hello_due;
  }
}

void ControlThread::Read(Inbound& inbound) {
  const bool open = inbound.reader.Read(inbound.socket, [&](const ControlFrame& frame) {
    Take(inbound, frame);
    return !inbound.ended;
  });
  inbound.ended = inbound.ended || !open;
}

void ControlThread::TakeHello(Inbound& inbound, const ControlFrame& frame) {
  ControlFrame answer = {.kind = ControlKind::kRefused};
  if (!IsProved(secret_, inbound.challenge, frame)) {
    LogWarning(
        "verbs: a sender was refused: it did not prove that it knows the cluster's secret; give "
        "all nodes the same token file");
  } else if (frame.owner == self_.owner && inbound.queue == nullptr) {
    auto queue = VerbsQueue::Create(local_, /*sends=*/false);
    const absl::Status status = queue.ok() ? (*queue)->Connect(frame.address) : queue.status();
    if (status.ok()) {
      inbound.queue = std::move(*queue);
      answer.kind = ControlKind::kWelcome;
      answer.address = inbound.queue->address();
    } else {
      LogWarning("verbs: a sender was refused: ", status.message());
    }
  }
  const bool sent = inbound.socket.Send(answer);
  inbound.ended = !sent || answer.kind == ControlKind::kRefused;
}

void ControlThread::TakeOpen(Inbound& inbound, const ControlFrame& frame) {
  const auto region = regions_.find(frame.region);
  const bool there = region != regions_.end() && region->second.alive && inbound.queue != nullptr &&
                     frame.owner == self_.owner;
  if (there && !inbound.views.Open(frame.view, frame.region)) {
    LogWarning("verbs: a sender opened more than ", limits_.views_max,
               " views at the same time; its connection is ended");
    inbound.ended = true;
    return;
  }
  const bool sent = inbound.socket.Send(
      {.kind = there ? ControlKind::kOpened : ControlKind::kGone, .view = frame.view});
  // A sender says hello first, and awaits its welcome.
  inbound.ended |= !sent || inbound.queue == nullptr;
}

void ControlThread::Take(Inbound& inbound, const ControlFrame& frame) {
  if (inbound.ended) {
    return;  // It ended since it was last read.
  }
  if (inbound.queue == nullptr && frame.kind != ControlKind::kHello &&
      frame.kind != ControlKind::kOpen) {
    inbound.ended = true;  // Who has proved nothing has nothing else to say.
    return;
  }
  switch (frame.kind) {
    case ControlKind::kHello:
      TakeHello(inbound, frame);
      return;
    case ControlKind::kOpen:
      TakeOpen(inbound, frame);
      return;
    case ControlKind::kClosed:
      inbound.views.Close(frame.view);
      return;
    case ControlKind::kDrained:
    case ControlKind::kDrop:
      inbound.views.Drop(frame.view);
      return;
    case ControlKind::kChallenge:
    case ControlKind::kWelcome:
    case ControlKind::kRefused:
    case ControlKind::kOpened:
    case ControlKind::kGone:
    case ControlKind::kClose:
      break;
  }
  inbound.ended = true;  // Nothing that a sender says.
}

void ControlThread::Read(VerbsLink& link) {
  const bool open = link.reader.Read(link.socket, [&](const ControlFrame& frame) {
    Take(link, frame);
    return !link.gone.load();
  });
  if (!open) {
    End(link);
  }
}

void ControlThread::Take(VerbsLink& link, const ControlFrame& frame) {
  const auto found = link.views.find(frame.view);
  if (found == link.views.end()) {
    return;  // Dropped meanwhile.
  }
  VerbsLink::View& view = found->second;
  using Stage = VerbsLink::View::Stage;
  switch (frame.kind) {
    case ControlKind::kOpened:
      view.stage = Stage::kOpen;
      return;
    case ControlKind::kGone:
      view.stage = Stage::kRefused;
      return;
    case ControlKind::kClose:
      view.state->closed.store(true);
      view.stage = Stage::kDraining;
      link.socket.Send({.kind = ControlKind::kClosed, .view = frame.view});
      return;
    case ControlKind::kChallenge:
    case ControlKind::kHello:
    case ControlKind::kWelcome:
    case ControlKind::kRefused:
    case ControlKind::kOpen:
    case ControlKind::kClosed:
    case ControlKind::kDrained:
    case ControlKind::kDrop:
      break;
  }
  End(link);
}

// Whether some view is still draining.
bool ControlThread::SendDrained() {
  bool draining = false;
  for (const auto& link : links_) {
    for (auto& [number, view] : link->views) {
      if (link->gone.load() || view.stage != VerbsLink::View::Stage::kDraining) {
        continue;
      }
      if (view.state->pending.load() > 0) {
        draining = true;
        continue;
      }
      link->socket.Send({.kind = ControlKind::kDrained, .view = number});
      view.stage = VerbsLink::View::Stage::kOpen;  // Nothing more to say about it.
    }
  }
  return draining;
}

void ControlThread::EndQueue(uint32_t number) {
  for (const auto& inbound : inbound_) {
    inbound->ended |= inbound->queue != nullptr && inbound->queue->address().number == number;
  }
  for (const auto& link : links_) {
    if (link->queue->address().number == number) {
      End(*link);
    }
  }
}

void ControlThread::ReadEvents() {
  ibv_async_event event;
  while (ibv_get_async_event(local_.context.get(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const bool of_queue = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                          type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_PATH_MIG_ERR;
    const uint32_t number = of_queue ? event.element.qp->qp_num : 0;
    ibv_ack_async_event(&event);
    if (of_queue) {
      LogWarning("verbs: queue pair ", number, ": ", ibv_event_type_str(type));
      EndQueue(number);
    } else if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE) {
      LogWarning("verbs: ", local_.choice.reason, ": ", ibv_event_type_str(type));
    } else if (type == IBV_EVENT_DEVICE_FATAL) {
      LogError("verbs: ", local_.choice.reason, ": ", ibv_event_type_str(type));
      for (const auto& link : links_) {
        End(*link);
      }
      for (const auto& inbound : inbound_) {
        inbound->ended = true;
      }
    }
  }
}

}  // namespace lamina::transport
