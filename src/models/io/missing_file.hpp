// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/io/file_error.hpp"

namespace headgate::io {

/// Reports a path that does not exist.
class MissingFile : public FileError {
 public:
  using FileError::FileError;
};

}  // namespace headgate::io
