// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/log.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "transport/shm/shm_descriptor.h"
#include "transport/verbs/control_thread_internal.h"

namespace lamina::transport {
namespace {

// For each address of a peer, and for each answer.
constexpr Nanos kConnectWait = Seconds(3);
constexpr Nanos kAnswerWait = Seconds(10);
// For senders that do not say that they stopped; they lose their queue pair then.
constexpr auto kCloseWait = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<ControlThread>> ControlThread::Start(const VerbsLocal& local,
                                                                    const ClusterSecret& secret,
                                                                    const ControlLimits& limits) {
  LAMINA_ASSIGN_OR_RETURN(
      ControlListener listener,
      ListenForPeers(local.options.local_peers ? kOwnHost : ControlAddress{}, local.options.ports));
  std::unique_ptr<ControlThread> control(
      new ControlThread(local, secret, limits, std::move(listener)));
  if (control->wake_ < 0) {
    return absl::ResourceExhaustedError("verbs: no file descriptor is left for an event");
  }
  control->thread_ = std::thread([raw = control.get()] { raw->Loop(); });
  return control;
}

ControlThread::ControlThread(const VerbsLocal& local, const ClusterSecret& secret,
                             const ControlLimits& limits, ControlListener listener)
    : local_(local),
      secret_(secret),
      limits_(limits),
      listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  self_.host = HostFingerprint();
  LAMINA_CHECK(getentropy(&self_.owner, sizeof self_.owner) == 0);
  self_.tcp_port = listener_.port;
  if (!local.options.local_peers) {  // Those of this host try its loopback first.
    self_.addresses = AddressesForPeers(
        InterfaceAddresses(), absl::MakeConstSpan(&local.options.network, 1), kVerbsAddressesMax);
  }
  const int flags = fcntl(local.context->async_fd, F_GETFL);
  fcntl(local.context->async_fd, F_SETFL, flags | O_NONBLOCK);
}

ControlThread::~ControlThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Wake();
  if (thread_.joinable()) {
    thread_.join();
  }
  // Queue pairs before the memory that their peers write.
  inbound_.clear();
  regions_.clear();
  if (wake_ >= 0) {
    close(wake_);
  }
}

void ControlThread::Wake() const {
  const uint64_t one = 1;
  // Full means that it is awake already.
  static_cast<void>(write(wake_, &one, sizeof one) == sizeof one);
}

uint64_t ControlThread::AddRegion(std::unique_ptr<RegionMemory> memory) {
  const std::lock_guard lock(mutex_);
  const uint64_t number = next_number_++;
  regions_[number].memory = std::move(memory);
  return number;
}

bool ControlThread::IsInUse(uint64_t region, bool unacknowledged_only) const {
  return std::any_of(inbound_.begin(), inbound_.end(), [&](const auto& inbound) {
    return !inbound->ended && inbound->views.Uses(region, unacknowledged_only);
  });
}

void ControlThread::CloseRegion(uint64_t region) {
  std::unique_lock lock(mutex_);
  regions_[region].alive = false;
  for (const auto& inbound : inbound_) {
    inbound->views.ForEachOf(region, [&](uint64_t view) {
      if (!inbound->ended) {
        inbound->ended = !inbound->socket.Send({.kind = ControlKind::kClose, .view = view});
      }
    });
  }
  const bool stopped = changed_.wait_for(
      lock, kCloseWait, [&] { return !IsInUse(region, /*unacknowledged_only=*/true); });
  if (!stopped) {
    for (const auto& inbound : inbound_) {
      inbound->ended |= inbound->views.Uses(region, /*unclosed_only=*/true);
    }
  }
  RemoveEnded();
  FreeRegions();
}

void ControlThread::RemoveEnded() {
  // Its queue pair goes with it: what the sender still has in flight is refused from now on.
  const auto ended = std::erase_if(inbound_, [](const auto& inbound) { return inbound->ended; });
  if (ended > 0) {
    changed_.notify_all();
  }
}

void ControlThread::FreeRegions() {
  std::erase_if(regions_, [this](const auto& item) {
    return !item.second.alive && !IsInUse(item.first, /*unacknowledged_only=*/false);
  });
}

absl::StatusOr<QueueAddress> ControlThread::Greet(VerbsLink& link, const ControlAddress& at,
                                                  uint16_t port, Nanos deadline) const {
  const auto within = [deadline](Nanos wait) {
    return std::min(RealClock().Now() + wait, deadline);
  };
  LAMINA_ASSIGN_OR_RETURN(link.socket, ConnectToPeer(at, port, within(kConnectWait)));
  LAMINA_ASSIGN_OR_RETURN(const ControlFrame challenge,
                          AwaitFrame(link.socket, within(kAnswerWait)));
  if (challenge.kind != ControlKind::kChallenge) {
    return absl::UnavailableError("what listens there does not challenge its senders");
  }
  ControlFrame hello = {
      .kind = ControlKind::kHello, .owner = link.owner, .address = link.queue->address()};
  Prove(secret_, challenge, hello);
  link.socket.Send(hello);
  LAMINA_ASSIGN_OR_RETURN(const ControlFrame answer, AwaitFrame(link.socket, within(kAnswerWait)));
  if (answer.kind != ControlKind::kWelcome) {
    return absl::UnavailableError(
        "another process than the owner listens there, or it refused this end (its log says why)");
  }
  return answer.address;
}

absl::StatusOr<std::shared_ptr<VerbsLink>> ControlThread::Connect(const VerbsDescriptor& descriptor,
                                                                  uint32_t user) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& link : links_) {
      if (link->owner == descriptor.owner && link->user == user && !link->gone.load()) {
        return link;
      }
    }
  }
  std::vector<ControlAddress> addresses;
  if (descriptor.host == self_.host) {
    addresses.push_back(kOwnHost);
  }
  addresses.insert(addresses.end(), descriptor.addresses.begin(), descriptor.addresses.end());
  auto link = std::make_shared<VerbsLink>();
  link->owner = descriptor.owner;
  link->user = user;
  LAMINA_ASSIGN_OR_RETURN(link->queue, VerbsQueue::Create(local_, /*sends=*/true));
  // The first address may be this host's own too, as that of Docker's bridge, or a stranger's.
  std::string tried;
  absl::StatusOr<QueueAddress> owner = absl::UnavailableError("it has no address");
  const Nanos deadline = RealClock().Now() + limits_.reach_wait;
  for (const ControlAddress& address : addresses) {
    if (RealClock().Now() >= deadline) {
      absl::StrAppend(&tried, "; no time was left for its other addresses");
      break;
    }
    owner = Greet(*link, address, descriptor.tcp_port, deadline);
    if (owner.ok()) {
      break;
    }
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", ToText(address), " port ",
                    descriptor.tcp_port, ": ", owner.status().message());
  }
  if (!owner.ok()) {
    return absl::UnavailableError(
        absl::StrCat("verbs: the owner of the region cannot be reached over TCP: ", tried,
                     ": it is gone, or a firewall stands between"));
  }
  LAMINA_RETURN_IF_ERROR(link->queue->Connect(*owner));
  LogInfo("verbs: connected by ", local_.choice.reason, " to ",
          owner->ethernet != 0 ? ToText(owner->gid) : absl::StrCat("LID ", owner->lid), ", MTU ",
          std::min<uint32_t>(owner->mtu, local_.choice.mtu));
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(links_, [](const auto& old) { return old->gone.load() && old->views.empty(); });
    links_.push_back(link);
  }
  Wake();
  return link;
}

absl::StatusOr<ControlThread::OpenedView> ControlThread::OpenView(VerbsLink& link,
                                                                  uint64_t region) {
  std::unique_lock lock(mutex_);
  const uint64_t number = next_number_++;
  auto state = std::make_shared<ViewState>();
  link.views[number].state = state;
  const bool sent = link.socket.Send(
      {.kind = ControlKind::kOpen, .view = number, .region = region, .owner = link.owner});
  const auto answered = [&] {
    return link.gone.load() || link.views[number].stage != VerbsLink::View::Stage::kAsked;
  };
  const bool in_time =
      sent && changed_.wait_for(lock, std::chrono::nanoseconds(kAnswerWait), answered);
  const VerbsLink::View::Stage stage = link.views[number].stage;
  // It may be closing already: the first Put will say so.
  const bool opened =
      stage == VerbsLink::View::Stage::kOpen || stage == VerbsLink::View::Stage::kDraining;
  if (in_time && !link.gone.load() && opened) {
    return OpenedView{number, std::move(state)};
  }
  link.views.erase(number);
  if (stage == VerbsLink::View::Stage::kRefused) {
    return absl::UnavailableError("verbs: the owner has destroyed the region");
  }
  End(link);
  return absl::UnavailableError("verbs: the owner of the region is gone");
}

void ControlThread::DropView(VerbsLink& link, uint64_t view) {
  const std::lock_guard lock(mutex_);
  link.views.erase(view);
  if (!link.gone.load()) {
    link.socket.Send({.kind = ControlKind::kDrop, .view = view});
  }
}

void ControlThread::End(VerbsLink& link) { link.gone.store(true); }

}  // namespace lamina::transport
