// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "io/scratch.hpp"

namespace headgate::train {
namespace {

TEST(MetricsLog, WritesAnObjectALineAtOnce) {
  const testing::Scratch scratch;
  MetricsLog log(scratch / "m.jsonl", 0);
  log.add({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(testing::read_bytes(scratch / "m.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
  log.add({{"step", 2}});
  EXPECT_EQ(testing::read_bytes(scratch / "m.jsonl"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2}\n");
}

TEST(MetricsLog, DropsWhatCameAfterTheCheckpoint) {
  const testing::Scratch scratch;
  const std::string path = scratch / "m.jsonl";
  testing::write_bytes(path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4");
  MetricsLog log(path, 2);
  log.add({{"step", 3}, {"again", true}});
  EXPECT_EQ(testing::read_bytes(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":true}\n");
}

TEST(MetricsLog, DropsWhatIsNoRecord) {
  const testing::Scratch scratch;
  const std::string path = scratch / "m.jsonl";
  testing::write_bytes(path, "{\"step\":1}\n[]\n{\"step\":2}\n");
  const MetricsLog log(path, 2);
  EXPECT_EQ(testing::read_bytes(path), "{\"step\":1}\n");
}

TEST(MetricsLog, SaysWhereItCannotWrite) { EXPECT_THROW(MetricsLog("/nonexistent/m.jsonl", 0), io::FileError); }

}  // namespace
}  // namespace headgate::train
