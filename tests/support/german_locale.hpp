// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // mkdtemp, setenv

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace headgate::support {

/// Makes the C locale of this process German while the object lives: a comma separates decimals, and with the charmap
/// ISO-8859-1 bytes above 127 are letters and punctuation. Compiles the locale with Debian's package `locales`.
class GermanLocale {
 public:
  explicit GermanLocale(const std::string& charmap) : before_(std::setlocale(LC_ALL, nullptr)) {
    std::string folder = ::testing::TempDir() + "headgate-locale-XXXXXX";
    if (::mkdtemp(folder.data()) != nullptr) folder_ = folder;
    const std::string name = "de_DE." + charmap;
    const std::string command = "localedef -i de_DE -f " + charmap + " '" + folder + "/" + name + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    ::setenv("LOCPATH", folder.c_str(), 1);
    EXPECT_NE(std::setlocale(LC_ALL, name.c_str()), nullptr) << name;
  }
  GermanLocale(const GermanLocale&) = delete;
  GermanLocale& operator=(const GermanLocale&) = delete;
  ~GermanLocale() {
    std::setlocale(LC_ALL, before_.c_str());
    ::unsetenv("LOCPATH");
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::string before_, folder_;
};

}  // namespace headgate::support
