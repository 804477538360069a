// What both handlers share: buffer pointers in the order of a kernel's Params, and C messages.

#ifndef JAXMONO_BUFFERS_H_
#define JAXMONO_BUFFERS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jaxmono {

// Arguments, then results (the scratch buffer is the last result). Returns "" or what is wrong.
inline std::string CollectBuffers(xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets,
                                  std::vector<void*>* buffers) {
  buffers->reserve(args.size() + rets.size());
  for (size_t i = 0; i < args.size(); ++i) {
    auto buffer = args.get<xla::ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error().message();
    buffers->push_back(buffer->untyped_data());
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<xla::ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error().message();
    buffers->push_back(buffer.value()->untyped_data());
  }
  return "";
}

// Copies a message into a caller's buffer, cut to its size and zero-terminated.
inline void CopyMessage(const std::string& message, char* out, int out_bytes) {
  if (out_bytes < 1) return;
  size_t length = std::min(message.size(), static_cast<size_t>(out_bytes) - 1);
  std::memcpy(out, message.data(), length);
  out[length] = '\0';
}

}  // namespace jaxmono

#endif  // JAXMONO_BUFFERS_H_
