/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_VERSION_H_
#define HEADGATE_VERSION_H_

/** The version of Headgate, by semantic versioning. The build reads it from this file. */
#define HEADGATE_VERSION_MAJOR 0
#define HEADGATE_VERSION_MINOR 2
#define HEADGATE_VERSION_PATCH 0

#define HEADGATE_STRINGIZE_(x) #x
#define HEADGATE_STRINGIZE(x) HEADGATE_STRINGIZE_(x)
#define HEADGATE_VERSION                     \
  HEADGATE_STRINGIZE(HEADGATE_VERSION_MAJOR) \
  "." HEADGATE_STRINGIZE(HEADGATE_VERSION_MINOR) "." HEADGATE_STRINGIZE(HEADGATE_VERSION_PATCH)

#endif /* HEADGATE_VERSION_H_ */
