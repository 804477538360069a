#include "emulator.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace jaxmono {
namespace {

// A path to an open file that no earlier call returned. The dynamic linker takes a library whose
// path it has seen for loaded already, and file descriptors are reused, so "/proc/self/fd/7" alone
// could give the object of an earlier kernel. "/" and "/./" mean the same to the kernel and differ
// for the linker: they spell a serial number in binary.
std::string UniquePath(int fd) {
  static std::atomic<uint64_t> serial{0};
  std::string path = "/proc/self/fd/";
  for (uint64_t n = ++serial; n != 0; n >>= 1) path += (n & 1) != 0 ? "./" : "/";
  return path + std::to_string(fd);
}

bool WriteAll(int fd, const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t written = write(fd, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

Emulator::~Emulator() {
  if (library_ != nullptr) dlclose(library_);
}

std::string Emulator::Load(const uint8_t* binary, size_t bytes, std::string name) {
  name_ = std::move(name);
  const std::string prefix = "jaxmono kernel " + name_ + " (interpreted): ";
  int fd = memfd_create(name_.c_str(), MFD_CLOEXEC);
  if (fd < 0) return prefix + "memfd_create failed: " + std::strerror(errno);
  if (!WriteAll(fd, binary, bytes)) {
    std::string reason = std::strerror(errno);
    close(fd);
    return prefix + "the shared object could not be written to memory: " + reason;
  }
  library_ = dlopen(UniquePath(fd).c_str(), RTLD_NOW | RTLD_LOCAL);
  close(fd);  // the mapping keeps the memory
  if (library_ == nullptr) {
    const char* reason = dlerror();
    return prefix + "the shared object could not be loaded: " +
           (reason != nullptr ? reason : "unknown reason");
  }
  entry_ = reinterpret_cast<Entry>(dlsym(library_, "jaxmono_emulate"));
  if (entry_ == nullptr) return prefix + "the shared object does not export jaxmono_emulate";
  return "";
}

std::string Emulator::Run(void* const* buffers, int blocks, uint64_t seed) {
  char error[2048] = "";
  std::lock_guard<std::mutex> lock(mutex_);
  if (entry_(buffers, blocks, seed, error, static_cast<int>(sizeof(error))) == 0) return "";
  error[sizeof(error) - 1] = '\0';
  return "jaxmono kernel " + name_ + " (interpreted): " +
         (error[0] != '\0' ? error : "it failed without a message");
}

}  // namespace jaxmono
