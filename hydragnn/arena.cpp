// Memory of torch's tensors on a CPU, instead of glibc's: one stretch of address space with best fit and a bound on what is resident.
//
// glibc cuts the ends off aligned memory and gives them to small objects, so that a freed tensor is too short for the next of its
// size, and half of a heap of tensors may be holes. Here tensors have nothing between them, what is free is whole again, and pages
// of holes go back to the system before more is resident than tensors took at their most, and a little. Blocks are known by tables
// beside the memory, which itself holds tensors alone. Small tensors stay with glibc.

#include <cstddef>
#include <cstdint>

static const int64_t VERSION = 1;  // that of allocator.py, which calls this library

extern "C" int64_t version() { return VERSION; }

#if defined(__linux__) && defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

#if defined(__x86_64__)
const uint32_t CALLED = R_X86_64_JUMP_SLOT, NAMED = R_X86_64_GLOB_DAT;
#else
const uint32_t CALLED = R_AARCH64_JUMP_SLOT, NAMED = R_AARCH64_GLOB_DAT;
#endif

const size_t UNIT = 64;             // bytes; tensors begin at multiples, as those of torch do
const size_t SMALL = 32 << 10;      // tensors below this stay with glibc
const size_t PAGE = size_t(2) << 20;  // what is resident is counted, and given back, in large pages
const size_t SLACK = size_t(32) << 20;  // so much may be resident beside what tensors took at their most,
const size_t SHARE = 16;                // and this part of it

struct Arena {
    uintptr_t begin = 0, end = 0;
    std::map<uintptr_t, size_t> free_at;                 // holes by place
    std::set<std::pair<size_t, uintptr_t>> free_of;      // the same by size
    std::unordered_map<uintptr_t, size_t> taken;         // tensors
    std::vector<bool> resident;                          // for every page, whether it was given to a tensor since it was empty
    size_t pages = 0, live = 0, most = 0;                // how many are; bytes of tensors, and the most so far

    void add_hole(uintptr_t place, size_t size) {
        free_at.emplace(place, size);
        free_of.emplace(size, place);
    }

    void remove_hole(uintptr_t place, size_t size) {
        free_at.erase(place);
        free_of.erase({size, place});
    }

    // The smallest hole that is large enough, the first of several.
    void* take(size_t bytes) {
        size_t size = (bytes + UNIT - 1) / UNIT * UNIT;
        auto found = free_of.lower_bound({size, 0});
        if (found == free_of.end()) return nullptr;
        auto [length, place] = *found;
        remove_hole(place, length);
        if (length > size) add_hole(place + size, length - size);
        taken.emplace(place, size);
        live += size;
        most = std::max(most, live);
        for (size_t page = (place - begin) / PAGE; page <= (place + size - 1 - begin) / PAGE; ++page)
            if (!resident[page]) resident[page] = true, ++pages;
        if (pages * PAGE > most + most / SHARE + SLACK) give_back();
        return reinterpret_cast<void*>(place);
    }

    void release(uintptr_t place) {
        auto known = taken.find(place);
        if (known == taken.end()) abort();  // freed twice
        size_t size = known->second;
        taken.erase(known);
        live -= size;
        auto after = free_at.lower_bound(place);
        if (after != free_at.end() && after->first == place + size) {
            auto [next, length] = *after;
            remove_hole(next, length);
            size += length;
        }
        auto before = free_at.lower_bound(place);
        if (before != free_at.begin()) {
            auto [last, length] = *--before;
            if (last + length == place) {
                remove_hole(last, length);
                place = last;
                size += length;
            }
        }
        add_hole(place, size);
    }

    // Pages of holes go back, those of the largest first, until no more is resident than may be.
    void give_back() {
        size_t allowed = most + most / SHARE + SLACK;
        for (auto hole = free_of.rbegin(); hole != free_of.rend() && pages * PAGE > allowed; ++hole) {
            size_t first = (hole->second - begin + PAGE - 1) / PAGE, last = (hole->second + hole->first - begin) / PAGE;
            for (size_t page = first; page < last && pages * PAGE > allowed; ++page) {
                if (!resident[page]) continue;
                madvise(reinterpret_cast<void*>(begin + page * PAGE), PAGE, MADV_DONTNEED);
                resident[page] = false;
                --pages;
            }
        }
    }
};

bool serves = false;  // whether torch's tensors come from here
Arena& arena = *new Arena;  // never destroyed: tensors are freed until the process ends
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void hold() { pthread_mutex_lock(&lock); }
void leave() { pthread_mutex_unlock(&lock); }

int tensor_memory(void** out, size_t alignment, size_t size) {
    if (size >= SMALL && alignment <= UNIT) {
        hold();
        void* place = nullptr;
        try {
            place = arena.take(size);
        } catch (const std::bad_alloc&) {
        }
        leave();
        if (place != nullptr) {
            *out = place;
            return 0;
        }
    }
    return posix_memalign(out, alignment, size);
}

void tensor_free(void* pointer) {
    uintptr_t place = reinterpret_cast<uintptr_t>(pointer);
    if (place < arena.begin || place >= arena.end) return free(pointer);
    int before = errno;
    hold();
    arena.release(place);
    leave();
    errno = before;
}

struct Slots {
    const char* library;
    std::vector<std::pair<void**, void*>> found;  // where the address of a function stands, and that of ours
    bool memory = false, freeing = false;
    uintptr_t fixed_begin = 0, fixed_end = 0;     // what the loader made read-only once it had bound everything
};

void look_through(const ElfW(Rela) * entries, size_t count, const ElfW(Sym) * symbols, const char* names, uintptr_t base, Slots& slots) {
    for (size_t number = 0; number < count; ++number) {
        uint32_t kind = ELF64_R_TYPE(entries[number].r_info);
        if (kind != CALLED && kind != NAMED) continue;
        const char* name = names + symbols[ELF64_R_SYM(entries[number].r_info)].st_name;
        void** slot = reinterpret_cast<void**>(base + entries[number].r_offset);
        if (!strcmp(name, "posix_memalign")) {
            slots.found.emplace_back(slot, reinterpret_cast<void*>(&tensor_memory));
            slots.memory = true;
        } else if (!strcmp(name, "free")) {
            slots.found.emplace_back(slot, reinterpret_cast<void*>(&tensor_free));
            slots.freeing = true;
        }
    }
}

int look_at(struct dl_phdr_info* object, size_t, void* data) {
    Slots& slots = *static_cast<Slots*>(data);
    const char* file = strrchr(object->dlpi_name, '/');
    if (file == nullptr || strcmp(file + 1, slots.library)) return 0;
    uintptr_t base = object->dlpi_addr;
    const ElfW(Dyn)* dynamic = nullptr;
    for (int part = 0; part < object->dlpi_phnum; ++part) {
        const ElfW(Phdr)& header = object->dlpi_phdr[part];
        if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(base + header.p_vaddr);
        if (header.p_type == PT_GNU_RELRO) {
            slots.fixed_begin = base + header.p_vaddr;
            slots.fixed_end = slots.fixed_begin + header.p_memsz;
        }
    }
    if (dynamic == nullptr) return 1;
    uintptr_t table[DT_NUM] = {};
    for (; dynamic->d_tag != DT_NULL; ++dynamic)
        if (dynamic->d_tag > 0 && dynamic->d_tag < DT_NUM) table[dynamic->d_tag] = dynamic->d_un.d_ptr;
    auto symbols = reinterpret_cast<const ElfW(Sym)*>(table[DT_SYMTAB]);
    auto names = reinterpret_cast<const char*>(table[DT_STRTAB]);
    if (symbols == nullptr || names == nullptr || (table[DT_JMPREL] && table[DT_PLTREL] != DT_RELA)) return 1;
    look_through(reinterpret_cast<const ElfW(Rela)*>(table[DT_RELA]), table[DT_RELASZ] / sizeof(ElfW(Rela)), symbols, names, base, slots);
    look_through(reinterpret_cast<const ElfW(Rela)*>(table[DT_JMPREL]), table[DT_PLTRELSZ] / sizeof(ElfW(Rela)), symbols, names, base, slots);
    return 1;
}

bool is_glibcs() {
    Dl_info of_ours, of_glibc;  // not where somebody has loaded another allocator before
    return dladdr(reinterpret_cast<void*>(&posix_memalign), &of_ours) && dladdr(reinterpret_cast<void*>(&dl_iterate_phdr), &of_glibc) &&
           of_ours.dli_fbase == of_glibc.dli_fbase;
}

bool write(const Slots& slots) {
    uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (auto [slot, function] : slots.found) {
        uintptr_t place = reinterpret_cast<uintptr_t>(slot);
        void* around = reinterpret_cast<void*>(place / page * page);
        if (mprotect(around, page, PROT_READ | PROT_WRITE)) return false;
        __atomic_store_n(slot, function, __ATOMIC_RELEASE);
        if (place >= slots.fixed_begin && place < slots.fixed_end / page * page) mprotect(around, page, PROT_READ);
    }
    return true;
}

}  // namespace

// Take over the tensors of the library that allocates them, `size` bytes at most at a time; 1 where it does from now on. Those that
// are there stay where they are.
extern "C" int64_t take_over(const char* library, int64_t size) {
    if (arena.begin != 0) return serves;
    Slots slots;
    slots.library = library;
    dl_iterate_phdr(look_at, &slots);
    if (!slots.memory || !slots.freeing || !is_glibcs()) return 0;
    size_t bytes = static_cast<size_t>(size) / PAGE * PAGE;
    void* space = mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return 0;
    uintptr_t begin = (reinterpret_cast<uintptr_t>(space) + PAGE - 1) / PAGE * PAGE;
    madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);
    arena.resident.assign(bytes / PAGE, false);
    arena.add_hole(begin, bytes);
    arena.begin = begin;
    arena.end = begin + bytes;
    pthread_atfork(hold, leave, leave);
    // memory is asked for before it is freed, and our free knows what is not its own: whatever was written, all goes well
    std::sort(slots.found.begin(), slots.found.end(), [](auto& one, auto& other) {
        return (one.second == &tensor_free) > (other.second == &tensor_free);
    });
    serves = write(slots);
    return serves;
}

// Bytes of tensors now and at their most, and those resident.
extern "C" void amounts(int64_t* out) {
    hold();
    out[0] = static_cast<int64_t>(arena.live);
    out[1] = static_cast<int64_t>(arena.most);
    out[2] = static_cast<int64_t>(arena.pages * PAGE);
    leave();
}

#else

extern "C" int64_t take_over(const char*, int64_t) { return 0; }
extern "C" void amounts(int64_t* out) { out[0] = out[1] = out[2] = 0; }

#endif
