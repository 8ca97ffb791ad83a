// The entry point Python calls: workers, the watchdog, and faults of the hardware made into errors.
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "machine.h"

namespace emu {
namespace {

__thread Worker* this_worker __attribute__((tls_model("initial-exec"))) = nullptr;
// Workers share the fibers: each takes two memory mappings, of which Linux gives a process 65,530.
constexpr int kMaxWorkers = 16, kMaxFibers = 8192;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction previous[3];

const void* interrupted_at(void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] + 1);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc + 1);
#else
  return nullptr;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  Worker* worker = this_worker;
  bool sent = info->si_code <= 0;  // by the watchdog, not by the hardware
  if (sent) {
    const void* pc = interrupted_at(context);
    // Only in the kernel's own code is it safe to leave; the watchdog tries again.
    if (worker != nullptr && worker->in_fiber && code_offset(worker->session, pc) != 0) {
      fail(current, pc,
           "the launch takes longer than %g s: an endless loop, or too large for the emulator (Options.timeout)",
           worker->launch->timeout);
    }
    return;
  }
  if (worker == nullptr || !worker->in_fiber || current == nullptr) {
    // Not ours: as if we had not been here.
    for (int i = 0; i < 3; ++i) {
      if (kSignals[i] == signal) sigaction(signal, &previous[i], nullptr);
    }
    return;
  }
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const void* pc = interrupted_at(context);
  if (signal == SIGFPE) fail(current, pc, "integer division by zero, or of the least integer by -1");
  if (worker->stacks.in_guard(address))
    fail(current, pc, "a thread's local memory overflows its %zu KB", kStackBytes / 1024);
  char where[256];
  describe_address(worker, address, where, sizeof(where));
  fail(current, pc, "invalid access to %s", where);
}

void install_handlers() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  for (int i = 0; i < 3; ++i) {
    struct sigaction now;
    sigaction(kSignals[i], nullptr, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault) continue;
    previous[i] = now;
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(kSignals[i], &ours, nullptr);
  }
}

int find_image(dl_phdr_info* info, size_t, void* data) {
  auto session = static_cast<Session*>(data);
  auto entry = reinterpret_cast<uintptr_t>(session->launch->entry);
  uintptr_t begin = info->dlpi_addr, end = begin;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD) end = std::max<uintptr_t>(end, begin + segment.p_vaddr + segment.p_memsz);
  }
  if (begin == 0 || entry < begin || entry >= end) return 0;
  session->image_begin = begin;
  session->image_end = end;
  return 1;
}

void add_counters(Counters& sum, const Counters& part) {
  auto to = reinterpret_cast<uint64_t*>(&sum);
  auto from = reinterpret_cast<const uint64_t*>(&part);
  for (size_t i = 0; i < sizeof(Counters) / 8; ++i) to[i] += from[i];
}

// Stacks outlive their launch: making and touching them anew would take longer than many a launch. All of them together
// are no more than the workers of one launch take: beside kMaxGuarded of a cooperative launch they leave a quarter of a
// process's mappings.
std::mutex spare_mutex;
std::vector<Stacks> spare_stacks;

Stacks take_stacks() {
  std::lock_guard<std::mutex> lock(spare_mutex);
  if (spare_stacks.empty()) return Stacks();
  Stacks stacks = std::move(spare_stacks.back());
  spare_stacks.pop_back();
  return stacks;
}

void keep_stacks(Stacks stacks) {
  std::lock_guard<std::mutex> lock(spare_mutex);
  size_t kept = stacks.count();
  for (const Stacks& spare : spare_stacks) kept += spare.count();
  if (kept <= kMaxFibers) spare_stacks.push_back(std::move(stacks));
}

// What a worker leaves behind.
struct Outcome {
  Counters counters;
  SiteTotals sites;
};

void work(Session* session, Outcome* outcome, uint64_t end) {
  std::unique_ptr<Worker> worker(new Worker());
  worker->session = session;
  worker->launch = session->launch;
  worker->stacks = take_stacks();
  std::unique_ptr<char[]> signal_stack(new char[64 * 1024]);
  stack_t stack = {}, disabled = {};
  stack.ss_sp = signal_stack.get();
  stack.ss_size = 64 * 1024;
  sigaltstack(&stack, nullptr);
  this_worker = worker.get();
  // Whatever ends a launch early comes back here; the fibers are simply left.
  if (sigsetjmp(worker->escape, 1) == 0) {
    if (!worker->prepare()) fail_block(worker.get(), "not enough memory for the stacks of a block's threads");
    while (!session->stop) {
      uint64_t first = session->next_cluster.fetch_add(session->batch);
      if (first >= end) break;
      worker->run(first);
    }
  }
  if (worker->idle) --session->idle;
  --session->running;
  this_worker = nullptr;
  current = nullptr;
  disabled.ss_flags = SS_DISABLE;
  sigaltstack(&disabled, nullptr);
  for (Block& block : worker->blocks) {
    if (block.arena != nullptr) munmap(block.arena, kArenaBytes);
  }
  keep_stacks(std::move(worker->stacks));
  outcome->counters = worker->counters;
  outcome->sites = std::move(worker->sites);
}

// For a worker that never is where it can be interrupted: it ends when it next looks at `stop`.
void record_timeout(Session* session) {
  if (!session->failed.test_and_set()) {
    snprintf(session->launch->error, sizeof(session->launch->error),
             "the launch takes longer than %g s (Options.timeout)", session->launch->timeout);
  }
  session->stop = true;
}

// Runs the workers and, should they take too long, sends each the signal that ends it.
void run_workers(Session* session, uint64_t end, int count) {
  std::vector<Outcome> outcomes(count);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable done;
  int left = count;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      work(session, &outcomes[i], end);
      std::lock_guard<std::mutex> lock(mutex);
      --left;
      done.notify_one();
    });
  }
  {
    std::unique_lock<std::mutex> lock(mutex);
    int tries = 0;
    auto patience = std::chrono::duration<double>(session->launch->timeout);
    while (!done.wait_for(lock, patience, [&] { return left == 0; })) {
      for (std::thread& thread : threads) pthread_kill(thread.native_handle(), SIGSEGV);
      patience = std::chrono::duration<double>(0.05);
      if (++tries == 40) record_timeout(session);
    }
  }
  for (std::thread& thread : threads) thread.join();
  SiteTotals sites;
  for (const Outcome& outcome : outcomes) {
    add_counters(session->launch->counters, outcome.counters);
    for (auto& [pc, part] : outcome.sites) {
      SiteTotal& total = sites[pc];
      total.code = code_offset(session, pc);
      total.transactions += part.transactions;
      total.ideal += part.ideal;
      total.shared = part.shared;
      total.bytes = part.bytes;
    }
  }
  Launch* launch = session->launch;
  for (auto& [pc, total] : sites) {
    if (launch->site_count < launch->site_capacity) launch->sites[launch->site_count++] = total;
  }
}

// What the checks note of buffers: whether each byte that starts uninitialised has been written, and who accessed what
// may be written. One for all buffers that overlap, which are the same memory by several names.
struct Shadows {
  std::vector<Sparse> written;
  std::deque<GlobalShadow> accesses;
};

// False if memory does not suffice.
bool shadow_buffers(Session* session, Shadows& shadows, bool shared) {
  const Launch* launch = session->launch;
  for (uint64_t i = 0; i < launch->buffer_count; ++i) {
    uint64_t begin = launch->buffers[i].address, end = begin + launch->buffers[i].bytes;
    auto overlaps = [&](const Buffer& other) { return other.address < end && begin < other.address + other.bytes; };
    bool initialized = false, writable = false, before = false;
    unsigned unit = 8;
    for (uint64_t grown = 1; grown != 0;) {
      grown = 0;
      for (uint64_t j = 0; j < launch->buffer_count; ++j) {
        const Buffer& other = launch->buffers[j];
        if (!overlaps(other)) continue;
        initialized |= other.initialized != 0;
        writable |= other.writable != 0;
        unit = std::min(unit, unsigned(other.unit));
        before |= j < i;
        grown |= uint64_t(other.address < begin) | uint64_t(other.address + other.bytes > end);
        begin = std::min(begin, other.address);
        end = std::max(end, other.address + other.bytes);
      }
    }
    if (before || !overlaps(launch->buffers[i])) continue;
    unsigned char* written = nullptr;
    if (!initialized) {
      shadows.written.emplace_back(end - begin);
      written = shadows.written.back().data();
      if (written == nullptr) return false;
    }
    if (writable) {
      shadows.accesses.emplace_back(begin, end - begin, unit, shared);
      if (!shadows.accesses.back().ready()) return false;
    }
    for (uint64_t j = i; j < launch->buffer_count; ++j) {
      if (!overlaps(launch->buffers[j])) continue;
      if (written != nullptr) session->written[j] = written + (launch->buffers[j].address - begin);
      if (writable) session->shadows[j] = &shadows.accesses.back();
    }
  }
  return true;
}

}  // namespace
}  // namespace emu

using namespace emu;

// Runs a launch; what it found goes into launch->error (empty: nothing) and launch->counters.
extern "C" __attribute__((visibility("default"))) void emu_launch(Launch* launch) {
  Session session;
  session.launch = launch;
  session.image_begin = session.image_end = 0;
  dl_iterate_phdr(find_image, &session);
  session.written.resize(launch->buffer_count);
  session.shadows.resize(launch->buffer_count);
  uint64_t clusters = launch->cluster_count;
  session.next_cluster = launch->first_cluster;
  session.batch = launch->cooperative ? clusters : 1;
  int threads = launch->threads > 0 ? launch->threads : std::max(1, int(std::thread::hardware_concurrency()));
  uint64_t fibers = session.batch;
  for (int i = 0; i < 3; ++i) fibers *= launch->block[i] * launch->cluster[i];
  threads = int(std::min<uint64_t>({uint64_t(threads), uint64_t(kMaxWorkers),
                                    std::max<uint64_t>(1, kMaxFibers / fibers), clusters / session.batch}));
  session.running = threads;
  Shadows shadows;
  if (launch->checks && !shadow_buffers(&session, shadows, threads > 1)) {
    snprintf(launch->error, sizeof(launch->error), "not enough memory to check what the buffers hold (Options.checks)");
    return;
  }
  install_handlers();
  run_workers(&session, launch->first_cluster + clusters, threads);
}

extern "C" uint64_t emu_clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

extern "C" void emu_trap(const char* message) { fail(current, EMU_PC, "%s", message); }
