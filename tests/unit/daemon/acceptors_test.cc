// SPDX-License-Identifier: Apache-2.0
#include "daemon/acceptors.h"

#include <gtest/gtest.h>

#include <boost/asio/error.hpp>
#include <cerrno>
#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace lamina::daemon {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kWait = std::chrono::seconds(30);

tcp::endpoint At(const std::string& address, uint16_t port = 0) {
  return {asio::ip::make_address(address), port};
}

bool CanListen(const std::string& address) {
  asio::io_context io;
  return !Acceptors(io).Listen({At(address)});
}

TEST(AcceptorsTest, TakesConnectionsAtEachAddressOnOnePort) {
  std::vector<std::string> here = {"127.0.0.1", "127.0.0.2"};
  if (CanListen("::1")) {
    here.emplace_back("::1");
  }
  std::vector<tcp::endpoint> addresses;
  for (const std::string& address : here) {
    addresses.push_back(At(address));
  }
  asio::io_context io;
  Acceptors acceptors(io);
  const error_code error = acceptors.Listen(addresses);
  ASSERT_FALSE(error) << error.message();
  ASSERT_NE(acceptors.port(), 0);
  std::multiset<std::string> reached;
  acceptors.Start({.accepted =
                       [&](tcp::socket socket) {
                         reached.insert(socket.local_endpoint().address().to_string());
                         if (reached.size() == 2 * here.size()) {
                           acceptors.Close();
                         }
                       },
                   .failed = [](const error_code&) { return false; }});
  std::multiset<std::string> wanted;
  std::vector<tcp::socket> clients;
  for (int time = 0; time < 2; ++time) {  // Each place goes on after its first.
    for (const std::string& address : here) {
      wanted.insert(address);
      clients.emplace_back(io);
      error_code refused;
      clients.back().connect(At(address, acceptors.port()), refused);
      EXPECT_FALSE(refused) << address << ": " << refused.message();
    }
  }

  io.run_for(kWait);

  EXPECT_EQ(reached, wanted);
  EXPECT_TRUE(io.stopped()) << "work is left after Close()";
}

TEST(AcceptorsTest, AddressesOfOtherHostsAreLeftOutUnlessAllAre) {
  asio::io_context io;
  Acceptors acceptors(io);

  EXPECT_FALSE(acceptors.Listen({At("192.0.2.1"), At("127.0.0.1")}));
  EXPECT_NE(acceptors.port(), 0);
  EXPECT_EQ(acceptors.Listen({At("192.0.2.1")}).value(), EADDRNOTAVAIL);
}

TEST(AcceptorsTest, APortThatIsInUseAtOneAddressIsAnError) {
  asio::io_context io;
  Acceptors other(io);
  ASSERT_FALSE(other.Listen({At("127.0.0.1")}));
  Acceptors acceptors(io);

  EXPECT_EQ(acceptors.Listen({At("127.0.0.2", other.port()), At("127.0.0.1", other.port())}),
            asio::error::address_in_use);
  EXPECT_FALSE(Acceptors(io).Listen({At("127.0.0.2", other.port())}))
      << "the address that was free is free again";
}

TEST(AcceptorsTest, LooksUpNamesAndTakesEachAddressOnce) {
  asio::io_context io;
  Acceptors acceptors(io);
  error_code error;

  const std::vector<tcp::endpoint> addresses =
      acceptors.AddressesOf({.host = "localhost", .port = 7}, error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_FALSE(addresses.empty());
  EXPECT_EQ(std::set<tcp::endpoint>(addresses.begin(), addresses.end()).size(), addresses.size());
  EXPECT_TRUE(acceptors.AddressesOf({.host = "no.such.host.invalid", .port = 7}, error).empty());
  EXPECT_TRUE(error);
}

}  // namespace
}  // namespace lamina::daemon
