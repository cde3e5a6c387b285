set terminal pngcairo size 1100,456 font 'sans,10'
set output '1M.png'
set title 'allreduce of 1 MiB'
set logscale x
set xrange [6.28267:44788.5]
set yrange [-0.7:13.7]
set xlabel 'µs, less is better'
set grid xtics
set key off
set style fill solid 0.8
plot '1M.dat' using 3:0:2:3:($0-0.35):($0+0.35):ytic(1) with boxxyerrorbars lc rgb '#4477aa', \
     '' using 3:0:4 with labels left offset 0.5,0
