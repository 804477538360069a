// One interpreted kernel: the shared object that the host compiler made, loaded from memory.

#ifndef JAXMONO_EMULATOR_H_
#define JAXMONO_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace jaxmono {

class Emulator {
 public:
  Emulator() = default;
  ~Emulator();
  Emulator(const Emulator&) = delete;
  Emulator& operator=(const Emulator&) = delete;

  // Loads the shared object and finds `jaxmono_emulate`. Returns "" or what is wrong.
  std::string Load(const uint8_t* binary, size_t bytes, std::string name);

  // Runs `blocks` blocks to completion. Returns "" or what the emulation reported.
  std::string Run(void* const* buffers, int blocks, uint64_t seed);

 private:
  using Entry = int (*)(void* const* buffers, int blocks, unsigned long long seed, char* error,
                        int error_bytes);

  std::string name_;
  void* library_ = nullptr;
  Entry entry_ = nullptr;
  // A GPU has one module per device; here the devices of a host share one loaded object with its
  // barrier counters, so they take turns.
  std::mutex mutex_;
};

}  // namespace jaxmono

#endif  // JAXMONO_EMULATOR_H_
