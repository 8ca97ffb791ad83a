// Which output tiles a worker (a block, or a cluster of blocks) computes, and which part of K of each: the tile
// schedulers of persistent kernels. `for_each(work)` calls `work(WorkTile)` for all that is this worker's. Placing
// a tile takes integer divisions: those of a worker's first tile are done by the constructor, while the blocks of a
// cluster wait for each other.

//: WorkTile
// The sum over tiles k_first to k_last of K for the output tile at (m0, n0). `end`: see the scheduler.
template <int BatchRank>
struct WorkTile {
  int m0, n0, k_first, k_last, end;
  int batch[BatchRank > 0 ? BatchRank : 1];
};

//: TileGrid
// The output tiles of BM x BN elements, a Cluster of them for each worker, in the order of `raster`; batches one after
// another.
template <int BM, int BN, bool AlongM, int Group, typename Cluster, int BatchRank>
struct TileGrid {
  using Tile = WorkTile<BatchRank>;
  static constexpr int ROWS = BM * Cluster::M, COLUMNS = BN * Cluster::N;
  static constexpr int CLUSTER_SIZE = Cluster::SIZE;
  const int tiles_m, tiles_n, k_tiles, rank, worker, workers;
  int batches[BatchRank > 0 ? BatchRank : 1];

  template <typename... Batches>
  __device__ __forceinline__ TileGrid(int M, int N, int k_tiles, Batches... batches)
      : tiles_m((M + ROWS - 1) / ROWS),
        tiles_n((N + COLUMNS - 1) / COLUMNS),
        k_tiles(k_tiles),
        rank(Cluster::rank()),
        worker(blockIdx.x / Cluster::SIZE),
        workers(gridDim.x / Cluster::SIZE),
        batches{batches...} {}

  __device__ __forceinline__ int tiles() const {
    int count = tiles_m * tiles_n;
#pragma unroll
    for (int d = 0; d < BatchRank; ++d) count *= batches[d];
    return count;
  }

  // All of K of tile `index` of a matrix of so many tiles.
  __device__ __forceinline__ Tile place(int index, int tiles_m, int tiles_n) const {
    const int2 at = raster<AlongM, Group>(index, tiles_m, tiles_n);
    Tile tile;
    tile.m0 = (at.x * Cluster::M + rank % Cluster::M) * BM;
    tile.n0 = (at.y * Cluster::N + rank / Cluster::M % Cluster::N) * BN;
    tile.k_first = 0;
    tile.k_last = k_tiles;
    return tile;
  }

  // All of K of tile `index` of all batches.
  __device__ __forceinline__ Tile at(int index) const {
    const int matrix = tiles_m * tiles_n;
    Tile tile = place(BatchRank > 0 ? index % matrix : index, tiles_m, tiles_n);
    int batch = index / matrix;
#pragma unroll
    for (int d = BatchRank - 1; d >= 0; --d) {
      tile.batch[d] = d ? batch % batches[d] : batch;
      if (d) batch /= batches[d];
    }
    return tile;
  }
};

//: PersistentScheduler
// Worker w takes tiles w, w + workers, ... One past the last tile takes none: its `first` is only placed.
template <typename Grid>
struct PersistentScheduler {
  const Grid grid;
  const typename Grid::Tile first;

  explicit __device__ __forceinline__ PersistentScheduler(const Grid& grid)
      : grid(grid), first(grid.at(min(grid.worker, grid.tiles() - 1))) {}

  template <typename Work>
  __device__ __forceinline__ void for_each(const Work& work) const {
    const int tiles = grid.tiles();
    typename Grid::Tile tile = first;
    for (int index = grid.worker; index < tiles;) {
      work(tile);
      index += grid.workers;
      if (index < tiles) tile = grid.at(index);
    }
  }
};

//: StreamKScheduler
// All steps along K of all tiles are shared evenly, so that a tile may be cut between workers (Osama et al., Stream-K,
// 2023). `end` counts the steps of all tiles up to this one's last.
template <typename Grid>
struct StreamKScheduler {
  const Grid grid;

  __device__ __forceinline__ int first_step(int worker) const {
    return static_cast<int>(static_cast<long long>(grid.tiles()) * grid.k_tiles * worker / grid.workers);
  }

  template <typename Work>
  __device__ __forceinline__ void for_each(const Work& work) const {
    const int last = first_step(grid.worker + 1);
    for (int step = first_step(grid.worker); step < last;) {
      const int index = step / grid.k_tiles;
      typename Grid::Tile tile = grid.at(index);
      tile.k_first = step - index * grid.k_tiles;
      tile.k_last = min(grid.k_tiles, tile.k_first + last - step);
      tile.end = (index + 1) * grid.k_tiles;
      step += tile.k_last - tile.k_first;
      work(tile);
    }
  }
};

//: SplitKScheduler
// Splits blocks for each tile, each with its share of K: those of a cluster, or InCluster false, one of each wave of
// tiles. Blocks beside each other then copy the same lines at the same time, which a GPC asks L2 for once.
template <typename Grid, int Splits, bool InCluster>
struct SplitKScheduler {
  const Grid grid;
  typename Grid::Tile part;

  explicit __device__ __forceinline__ SplitKScheduler(const Grid& grid) : grid(grid), part(grid.at(tile())) {
    part.k_first = static_cast<int>(static_cast<long long>(grid.k_tiles) * split() / Splits);
    part.k_last = static_cast<int>(static_cast<long long>(grid.k_tiles) * (split() + 1) / Splits);
  }

  __device__ __forceinline__ int tile() const { return InCluster ? grid.worker : grid.worker % grid.tiles(); }
  __device__ __forceinline__ int split() const { return InCluster ? grid.rank : grid.worker / grid.tiles(); }

  template <typename Work>
  __device__ __forceinline__ void for_each(const Work& work) const {
    work(part);
  }
};

//: GroupedScheduler
// Tiles are cut from the rows (GroupsAlongM) or columns of each group by themselves: group g of `groups` ends at
// offsets[g + 1], the last one before `extent`; `end` is where a tile's group ends. Behind the last group sums are 0,
// which one step beyond the end of K gives: TMA fills in zeros there.
template <typename Grid, bool GroupsAlongM, typename Offset>
struct GroupedScheduler {
  const Grid grid;
  const Offset* offsets;
  const int extent, groups;

  template <typename Work>
  __device__ __forceinline__ void for_each(const Work& work) const {
    int index = grid.worker;
    int first = 0;  // tile of the group
    int begin = 0;
    for (int group = 0; group <= groups; ++group) {
      const int end = group < groups ? max(begin, min(offsets[group + 1], extent)) : extent;
      constexpr int CUT = GroupsAlongM ? Grid::ROWS : Grid::COLUMNS;
      const int cut = (end - begin + CUT - 1) / CUT;
      const int tiles_m = GroupsAlongM ? cut : grid.tiles_m;
      const int tiles_n = GroupsAlongM ? grid.tiles_n : cut;
      const int tiles = tiles_m * tiles_n;
      for (; index < first + tiles; index += grid.workers) {
        typename Grid::Tile tile = grid.place(index - first, tiles_m, tiles_n);
        (GroupsAlongM ? tile.m0 : tile.n0) += begin;
        tile.end = end;
        tile.batch[0] = group;
        tile.k_first = group < groups ? 0 : grid.k_tiles;
        tile.k_last = group < groups ? grid.k_tiles : grid.k_tiles + 1;
        work(tile);
      }
      first += tiles;
      begin = end;
    }
  }
};
