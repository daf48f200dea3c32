/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_EXPORT_H_
#define HEADGATE_EXPORT_H_

/** Exports a symbol from the library. Symbols without HEADGATE_API are hidden. */
#if defined(_WIN32)
#define HEADGATE_API
#else
#define HEADGATE_API __attribute__((visibility("default")))
#endif

#endif /* HEADGATE_EXPORT_H_ */
