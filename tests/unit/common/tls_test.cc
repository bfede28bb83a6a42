// SPDX-License-Identifier: Apache-2.0
#include "common/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

namespace lamina {
namespace {

using ::testing::HasSubstr;

// Their keys were thrown away.
// The CA of the cluster, until 2120.
constexpr char kCa[] = R"(-----BEGIN CERTIFICATE-----
MIIBPDCB46ADAgECAgEBMAoGCCqGSM49BAMCMA0xCzAJBgNVBAMMAmNhMCAXDTIw
MDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjANMQswCQYDVQQDDAJjYTBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABJlaVCWebT65qfcfhJ/5Jf8HPFiqJ1ognYft
0GdjLT3fnaQpyCncXaLpD9QVmR7EpAHw9z7fNp9eJjmftB+BdCOjMjAwMA8GA1Ud
EwEB/wQFMAMBAf8wHQYDVR0OBBYEFJluwjAWb0Y4t/j2CfMk1xMQARC/MAoGCCqG
SM49BAMCA0gAMEUCIHcnO1PSYjSc9m5doMu01AHiBKNM2EwHApeLS3oJKVBSAiEA
uvAhalVVRjp3OQrHzjymj7sEjQHmBHkEkvG2EfgxoYQ=
-----END CERTIFICATE-----
)";
// Signed by that CA, for m1 and m2, until 2120; its common name is m0.
constexpr char kMember[] = R"(-----BEGIN CERTIFICATE-----
MIIBXzCCAQagAwIBAgIBAzAKBggqhkjOPQQDAjANMQswCQYDVQQDDAJjYTAgFw0y
MDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowDTELMAkGA1UEAwwCbTAwWTAT
BgcqhkjOPQIBBggqhkjOPQMBBwNCAARWk8hXrZMRpfTYDyBI9WmpvQbyktdk6Wn+
o7+6kc6fVMzKmYGzfAC71uTpxvpSUfsX3sS1yTG9Qnb8bekIhkp2o1UwUzARBgNV
HREECjAIggJtMYICbTIwHQYDVR0OBBYEFPImIBVuqNUh3vusx2e1fnnbyWlpMB8G
A1UdIwQYMBaAFJluwjAWb0Y4t/j2CfMk1xMQARC/MAoGCCqGSM49BAMCA0cAMEQC
IDD0y5iXePZg6arhB+csN/QP5mMlMr16pO643D0ibrGbAiADtSOKZQR1EzvdtJIA
0niJ1SiFdm0m6rboQsRIO7Qypw==
-----END CERTIFICATE-----
)";
// Signed by that CA, for m1, over since 2020.
constexpr char kExpired[] = R"(-----BEGIN CERTIFICATE-----
MIIBWjCCAQCgAwIBAgIBBDAKBggqhkjOPQQDAjANMQswCQYDVQQDDAJjYTAeFw0y
MDAxMDEwMDAwMDBaFw0yMDAxMDIwMDAwMDBaMA0xCzAJBgNVBAMMAm0wMFkwEwYH
KoZIzj0CAQYIKoZIzj0DAQcDQgAE589/7R9C8/VGwuo+rTg577LWQlwBBx6CflXu
6Gf51sdndNqqpekCIKxg8R6Yuq+kc4nleicS1uLoE94WGi7t0KNRME8wDQYDVR0R
BAYwBIICbTEwHQYDVR0OBBYEFD2WJ01RtDvluDet0kZX4NTp30BgMB8GA1UdIwQY
MBaAFJluwjAWb0Y4t/j2CfMk1xMQARC/MAoGCCqGSM49BAMCA0gAMEUCIQCrlI5/
agb185mat47AtaoSGCcW6cnnEi5qEH3vulGY0gIgPXBBp3uKjLd9Mf5p/+FPenw1
FnOCQ1tgQb43pS/l6ig=
-----END CERTIFICATE-----
)";
// Signed by that CA, for m1, from 2119 on.
constexpr char kEarly[] = R"(-----BEGIN CERTIFICATE-----
MIIBXTCCAQSgAwIBAgIBBTAKBggqhkjOPQQDAjANMQswCQYDVQQDDAJjYTAiGA8y
MTE5MDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjANMQswCQYDVQQDDAJtMDBZ
MBMGByqGSM49AgEGCCqGSM49AwEHA0IABEcmH9059SQo4P5CFmERepgB2aQ6MmE6
WHh3/IICtiX2bfHxZEj1c5yRhsw9Lx6DwkFcw7EKFyZil16LMbHwBEGjUTBPMA0G
A1UdEQQGMASCAm0xMB0GA1UdDgQWBBR6cKM07GP7rYyiRVWhWqz001taXDAfBgNV
HSMEGDAWgBSZbsIwFm9GOLf49gnzJNcTEAEQvzAKBggqhkjOPQQDAgNHADBEAiB/
UHCzRl/3Wk/G6YU7PtCM3kRUxQmy3QwJ1R5pOMTf/QIgQl9X6SDi4/+dHG4NbShM
tpWUq3ZjxlP5AbtBjTkFTNY=
-----END CERTIFICATE-----
)";
// Signed by another CA, for m1, until 2120.
constexpr char kForeign[] = R"(-----BEGIN CERTIFICATE-----
MIIBXzCCAQWgAwIBAgIBBjAKBggqhkjOPQQDAjAQMQ4wDAYDVQQDDAVvdGhlcjAg
Fw0yMDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowDTELMAkGA1UEAwwCbTAw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATw4AstIZJ9pylDmi5YGlEKEfy4qyrM
hPsmmbVEjB/teipzMy6NkvcsEjGc7nnAVwdArfX0QbLngGZPaClc/qEHo1EwTzAN
BgNVHREEBjAEggJtMTAdBgNVHQ4EFgQUwz/ie/dwnPmbgm/Gl5QjZRoRZLUwHwYD
VR0jBBgwFoAUk70C5Xf2BBCVXnPRYw4yf0rnIDkwCgYIKoZIzj0EAwIDSAAwRQIg
ARUFAV+pkWj+bBy5qw5TEISx6hd2LGmAihIj9LsT4/oCIQCdOYmtkh7ZP4rW6yYs
plpD+7Gg1cEhxr0b4DR5ewibKA==
-----END CERTIFICATE-----
)";
// Signed by that CA, for *.lamina, until 2120.
constexpr char kWildcard[] = R"(-----BEGIN CERTIFICATE-----
MIIBYzCCAQigAwIBAgIBBzAKBggqhkjOPQQDAjANMQswCQYDVQQDDAJjYTAgFw0y
MDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowDTELMAkGA1UEAwwCbTAwWTAT
BgcqhkjOPQIBBggqhkjOPQMBBwNCAAQwZYUuG4tFtrJXg0NaQ93/Ww0Xi/+yup5D
gRpanf29K2xFuTkEc8aUwJF0DqD/YU8NQOztG8idVIHMrd9TgMJ/o1cwVTATBgNV
HREEDDAKgggqLmxhbWluYTAdBgNVHQ4EFgQUzYQBuahri5cTo5RSV1qpkNecy2Uw
HwYDVR0jBBgwFoAUmW7CMBZvRji3+PYJ8yTXExABEL8wCgYIKoZIzj0EAwIDSQAw
RgIhAL6f/P9X2lQZJmWY3sLgP3CADZFgH2xGAS9CSDNKC5KAAiEAqKsIvhaMOhwh
el3zrrpSe918ozifJ1/wcJ+2eqQPSoc=
-----END CERTIFICATE-----
)";

class TlsTest : public ::testing::Test {
 protected:
  static std::string File(const std::string& name, const std::string& text) {
    const std::string path = testing::TempDir() + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
    return path;
  }

  absl::Status Verify(const std::string& pem, const std::string& name) const {
    return VerifyCertificate(pem, ca_, name);
  }
  static std::string WhyNot(const absl::Status& status, absl::StatusCode code) {
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
  std::string Denied(const std::string& pem, const std::string& name) const {
    return WhyNot(Verify(pem, name), absl::StatusCode::kPermissionDenied);
  }

  const std::string ca_ = File("ca.pem", kCa);
  const std::string member_ = File("member.pem", kMember);
};

TEST_F(TlsTest, AMembersCertificateIsOfEachOfItsNames) {
  EXPECT_TRUE(Verify(kMember, "m1").ok()) << Verify(kMember, "m1");
  EXPECT_TRUE(Verify(kMember, "m2").ok());
  EXPECT_THAT(Denied(kMember, "m3"), HasSubstr("its certificate is not of m3"));
  EXPECT_THAT(Denied(kMember, "m0"), HasSubstr("not of m0")) << "a common name is no DNS name";
}

TEST_F(TlsTest, AWildcardIsNobodysName) {
  EXPECT_THAT(Denied(kWildcard, "m1.lamina"), HasSubstr("not of m1.lamina"));
}

TEST_F(TlsTest, SaysWhyACertificateIsNotBelieved) {
  EXPECT_THAT(Denied("", "m1"), HasSubstr("it showed no certificate"));
  EXPECT_THAT(Denied("no PEM at all", "m1"), HasSubstr("it showed no certificate"));
  EXPECT_THAT(Denied(kExpired, "m1"), HasSubstr("not believed: certificate has expired"));
  EXPECT_THAT(Denied(kEarly, "m1"), HasSubstr("not believed: certificate is not yet valid"));
  EXPECT_THAT(Denied(kForeign, "m1"), HasSubstr("not believed: unable to get local issuer"));
}

TEST_F(TlsTest, NobodyIsBelievedWithoutTheCasFile) {
  EXPECT_THAT(
      WhyNot(VerifyCertificate(kMember, ca_ + ".gone", "m1"), absl::StatusCode::kPermissionDenied),
      HasSubstr("ca.pem.gone cannot be read"));
}

TEST_F(TlsTest, FilesThatDoNotFitAreNamed) {
  EXPECT_TRUE(CheckTlsFiles({}).ok());
  EXPECT_TRUE(CheckTlsFiles({.ca = ca_}).ok());
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(WhyNot(CheckTlsFiles({.ca = ca_, .certificate = member_}), invalid),
              HasSubstr("certificate and key go together"));
  EXPECT_THAT(WhyNot(CheckTlsFiles({.certificate = member_, .key = member_}), invalid),
              HasSubstr("need ca"));
  const std::string text = File("text.pem", "not a certificate");
  EXPECT_THAT(WhyNot(CheckTlsFiles({.ca = text}), invalid),
              HasSubstr("text.pem has no certificate in PEM"));
  EXPECT_THAT(WhyNot(CheckTlsFiles({.ca = ca_, .certificate = text, .key = text}), invalid),
              HasSubstr("tls.certificate: "));
  EXPECT_THAT(WhyNot(CheckTlsFiles({.ca = ca_, .certificate = member_, .key = text}), invalid),
              HasSubstr("has no private key in PEM"));
  EXPECT_THAT(WhyNot(CheckTlsFiles({.ca = ca_ + ".gone"}), absl::StatusCode::kNotFound),
              HasSubstr("tls.ca: cannot open"));
}

TEST_F(TlsTest, AKeyThatOthersMayUseIsRefused) {
  const std::string open = File("open.key", "a key");
  chmod(open.c_str(), 0644);
  EXPECT_THAT(WhyNot(CheckTlsFiles({.ca = ca_, .certificate = member_, .key = open}),
                     absl::StatusCode::kPermissionDenied),
              HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace lamina
