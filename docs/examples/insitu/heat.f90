! Solve the heat equation from random fields, and push each step into a stream of mpips.
!
!     gfortran -O2 $(mpips client --fortran) heat.f90 -o heat $(mpips client --libs)
!     ./heat 0 8        (producer 0, 8 simulations; heat.py must run on this node)
program heat
  use, intrinsic :: iso_c_binding
  use mpips_client
  implicit none
  integer, parameter :: cells = 24, side = cells + 2, steps = 40  ! an array has a halo of one cell
  real(c_double), target :: before(0:cells + 1, 0:cells + 1), after(0:cells + 1, 0:cells + 1), conductivity
  real(c_float) :: stop_asked(1) = 0
  integer(c_int64_t) :: first, version
  integer :: number, runs, run, step, code, i
  integer, allocatable :: seed(:)
  type(mpips_producer) :: p

  number = argument(1, 0)
  runs = argument(2, 8)
  call mpips_open(p, "heat", number, 120d0, code); call check(code)
  call mpips_declare(p, "before", mpips_float64, [cells, cells], strides=[1, side], code=code); call check(code)
  call mpips_declare(p, "after", mpips_float64, [cells, cells], strides=[1, side], code=code); call check(code)
  call mpips_declare(p, "conductivity", mpips_float64, [integer ::], code=code); call check(code)

  call random_seed(size=i)
  allocate (seed(i))
  first = mpips_produced(p)  ! after a restart, go on where it ended
  do run = int(first)/steps, runs - 1
    if (stop_asked(1) /= 0) exit
    seed = 1000*number + run + [(37*i, i=1, size(seed))]
    call random_seed(put=seed)
    do i = 1, 10
      call random_number(before)  ! a generator with a seed of small numbers begins poorly
    end do
    call random_number(conductivity)
    conductivity = 0.05d0 + 0.2d0*conductivity
    call random_number(before)
    before = 2*before - 1
    do step = 0, steps - 1
      call advance()
      if (run*steps + step >= first) then
        call mpips_push(p, [c_loc(before(1, 1)), c_loc(after(1, 1)), c_loc(conductivity)], code)
        call check(code)
      end if
      before = after
    end do
    call mpips_steer(p, stop_asked, version, code)  ! the trainer ends the simulations
    call check(code)
  end do
  print '(a, i0, a, i0, a)', "heat: producer ", number, " has pushed ", mpips_produced(p), " samples"
  call mpips_close(p, code); call check(code)

contains

  subroutine check(code)
    integer, intent(in) :: code
    if (code == mpips_ok) return
    print '(2a)', "heat: ", mpips_message()
    stop 1
  end subroutine

  integer function argument(i, default)
    integer, intent(in) :: i, default
    character(20) :: text
    call get_command_argument(i, text)
    argument = default
    if (text /= "") read (text, *) argument
  end function

  ! One explicit step; the field is periodic.
  subroutine advance()
    integer :: i, j
    before(0, :) = before(cells, :)
    before(cells + 1, :) = before(1, :)
    before(:, 0) = before(:, cells)
    before(:, cells + 1) = before(:, 1)
    do j = 1, cells
      do i = 1, cells
        after(i, j) = before(i, j) + conductivity*(before(i - 1, j) + before(i + 1, j) &
                      + before(i, j - 1) + before(i, j + 1) - 4*before(i, j))
      end do
    end do
  end subroutine

end program
